"""What requests did and how long they took, kept between two records of ``__telemetry``. Pure:
``telemetry_writer.py`` owns the clock and the log.

Nothing is counted a second time for this. Requests are counted where usage is (``usage.py``), and
what is taken from there passes by here on its way; the hot path adds one number, to the bucket of
the request's duration.

The number of rows has a bound, and each tenant a share of it. What comes beyond the share is added
to one row of the tenant whose resource and operation are ``*``, beyond the bound to one of all:
details are lost then, totals never.
"""

from typing import Final

from penstock.frontend.usage import Counts, Key
from penstock.model.limits import TENANT_FACTS_PERCENT
from penstock.model.quotas import Shares
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
    def __init__(self, *, rows_max: int = CALL_ROWS_MAX, own_account: str | None = None) -> None:
        """``own_account``: of the node's own tenant; others have a share. None: all have all."""
        self._rows = Shares(rows_max, TENANT_FACTS_PERCENT, own_account=own_account)
        self._sums: dict[Key, _Sums] = {}

    def absorb(self, key: Key, counts: Counts) -> None:
        """What was counted for a key since the last time; for ``UsageTable.on_taken``."""
        if not (counts.requests or counts.messages):
            return
        sums = self._sums.get(key)
        if sums is None:
            if self._rows.is_used_up(key[0]):
                key = (key[0], "", FOLDED, FOLDED)
            if key not in self._sums:
                if self._rows.is_full():
                    key = _FOLDED_KEY
                self._rows.add(key[0])
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
        self._rows.clear()
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
