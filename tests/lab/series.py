"""Ledgers as series, second by second: how much was answered, how long it took. For the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.harness import ledger as L  # noqa: N812  (every event class is used)
from tests.lab import kafka_ledger as K  # noqa: N812  (every event class is used)

NS = 1_000_000_000
KINDS = ("send", "receive", "delete", "produce")


@dataclass
class Series:
    """Of one kind of call: per second, how many and the milliseconds each took."""

    counts: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    took_ms: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def percentile(self, second: int, share: float) -> float | None:
        took = sorted(self.took_ms.get(second, ()))
        return took[min(len(took) - 1, int(share * len(took)))] if took else None


def build_series(
    events: Iterable[L.AnyEvent], kafka: Sequence[K.AnyEvent], start: int
) -> dict[str, Series]:
    series = {kind: Series() for kind in KINDS}
    invoked: dict[L.Key, int] = {}
    deleting: dict[str, int] = {}
    calls: set[str] = set()

    def note(kind: str, at: int, invoked_at: int) -> None:
        second = (at - start) // NS
        series[kind].counts[second] += 1
        series[kind].took_ms[second].append((at - invoked_at) / 1e6)

    for event in events:
        second = (event.at - start) // NS
        match event:
            case L.Invoke():
                invoked[event.key] = event.at
            case L.Ok():
                note("send", event.at, invoked[event.key])
            case L.Fail() | L.Info():
                series["send"].failed[second] += 1
            case L.Recv():
                series["receive"].counts[second] += 1
                if event.call not in calls:
                    calls.add(event.call)
                    took = (event.at - event.invoked_at) / 1e6
                    series["receive"].took_ms[second].append(took)
            case L.RecvInfo():
                series["receive"].failed[second] += 1
            case L.DelInvoke():
                deleting[event.receipt] = event.at
            case L.DelOk():
                note("delete", event.at, deleting.get(event.receipt, event.at))
            case L.DelInfo() | L.DelFail():
                series["delete"].failed[second] += 1
            case _:
                pass
    for burst in kafka:
        if isinstance(burst, K.Acked):
            for _, _, _, sent_at in burst.records:
                note("produce", burst.at, sent_at)
        elif isinstance(burst, K.Unknown):
            series["produce"].failed[(burst.at - start) // NS] += len(burst.records)
    return series
