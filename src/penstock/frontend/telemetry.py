"""What requests did and how long they took, kept between two records of ``__telemetry``. Pure:
``telemetry_writer.py`` owns the clock and the log.

Nothing is counted a second time for this. Requests are counted where usage is (``usage.py``), and
what is taken from there passes by here on its way; the hot path adds one number, to the bucket of
the request's duration.

The number of rows has a bound. What comes beyond it is added to one row whose resource and
operation are ``*``: details are lost then, totals never.
"""

from typing import Final

from penstock.frontend.usage import Counts, Key
from penstock.wire.facts.telemetry import CALLS, FOLDED, TelemetryColumns, packed

CALL_ROWS_MAX: Final = 5_000
_FOLDED_KEY: Final[Key] = ("", "", FOLDED, FOLDED)


class _Sums:
    __slots__ = ("bytes_in", "bytes_out", "durations", "errors", "messages", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.errors = 0
        self.messages = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.durations: dict[int, int] = {}


class CallSums:
    def __init__(self, *, rows_max: int = CALL_ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._sums: dict[Key, _Sums] = {}

    def absorb(self, key: Key, counts: Counts) -> None:
        """What was counted for a key since the last time; for ``UsageTable.on_taken``."""
        if not (counts.requests or counts.messages):
            return
        sums = self._sums.get(key)
        if sums is None:
            if len(self._sums) >= self._rows_max:
                key = _FOLDED_KEY
            sums = self._sums.setdefault(key, _Sums())
        sums.requests += counts.requests
        sums.errors += counts.throttled + counts.denied + counts.failed
        sums.messages += counts.messages
        sums.bytes_in += counts.bytes_in
        sums.bytes_out += counts.bytes_out
        for bucket, count in (counts.durations or {}).items():
            sums.durations[bucket] = sums.durations.get(bucket, 0) + count

    def take(self, to: TelemetryColumns) -> None:
        """As rows, and begin again."""
        taken, self._sums = self._sums, {}
        for (account, region, resource, op), sums in taken.items():
            to.add(
                CALLS,
                account=account,
                region=region,
                resource=resource,
                op=op,
                requests=sums.requests,
                errors=sums.errors,
                messages=sums.messages,
                bytes_in=sums.bytes_in,
                bytes_out=sums.bytes_out,
                hist=packed(sums.durations),
            )
