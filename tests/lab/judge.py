"""The verdict on a run: every invariant as a count, and whether the run was worth judging.

What one client saw of one message is judged by ``harness.checker``, what Kafka clients saw by
``kafka_check``, copies by ``replicas`` and ``states``. Here they come together with what only the
whole of a run shows:

DARK    after a single kill a queue took no message for longer than a lease and what its profile
        allows (four seconds, more where other tests run beside it); or giving a thousand partitions
        other leaders took longer than five
STUCK   also: a queue took no message within 15 s after a fault was over, though nothing else was
        broken then; a call hung, though the node that was asked could have answered
TRACE   in any node's log

A run that proves nothing is INVALID, which fails as well: faults without an effect, too few
failovers, truncations or changes of in-sync sets, too little work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise

import msgspec
from tests.harness import checker
from tests.harness import ledger as L  # noqa: N812  (every event class is used)
from tests.harness.server import tracebacks
from tests.lab.kafka_check import KafkaHistory, check_kafka
from tests.lab.kafka_ledger import AnyEvent as KafkaEvent
from tests.lab.replicas import Compared
from tests.lab.states import ComparedStates

INVARIANTS = (
    "LOST", "PHANTOM", "CONFLICT", "DUP", "SKIP", "BACK", "REORDER", "HWBACK", "RESURRECT",
    "OVERLAP", "GROUP", "RCOUNT", "DEDUP", "BADCRC", "STUCK", "SPLIT", "STATE", "GHOST", "DARK",
    "TRACE",
)  # fmt: skip
DARK_EXTRA_MS = 4_000
STUCK_MS = 15_000
CALLED_OFF_AFTER_SECONDS = (
    0.1  # a receive that was answered sooner was not passed from node to node
)
BACK_MS = 5_000  # for a node that was silent, until it counts as one that answers
NS_PER_MS = 1_000_000


class FaultDone(msgspec.Struct, frozen=True):
    """A fault as it went; times in CLOCK_MONOTONIC nanoseconds."""

    name: str
    victims: tuple[str, ...]
    silent: tuple[int, ...]
    injected_at: int
    healed_at: int
    is_single_kill: bool
    evidence: str | None
    is_clock_wrong: bool = False  # of one of the nodes, meanwhile
    found: tuple[tuple[str, str], ...] = ()  # what it has seen broken itself: invariant, why


class Minima(msgspec.Struct, frozen=True):
    """What a run must have gone through to count. Failovers and changes of in-sync sets are counted
    by their causes and not by partitions (``rows.waves``)."""

    sends: int = 0
    failovers: int = 0
    in_sync_changes: int = 0
    truncations: int = 0


@dataclass
class Judgement:
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, 0))
    first: dict[str, str] = field(default_factory=dict)
    coverage: dict[str, int] = field(default_factory=dict)
    worthless: list[str] = field(default_factory=list)  # why the run proves nothing
    outages_ms: dict[str, int] = field(default_factory=dict)  # fault → the longest of any queue

    def add(self, name: str, why: str) -> None:
        self.counts[name] += 1
        self.first.setdefault(name, why)

    @property
    def is_good(self) -> bool:
        return not any(self.counts.values()) and not self.worthless

    @property
    def word(self) -> str:
        """For the run as a whole. What is broken counts before what was not tried."""
        if any(self.counts.values()):
            return "BAD"
        return "INVALID" if self.worthless else "good"

    def text(self) -> str:
        lines = ["  ".join(f"{name}={count}" for name, count in self.counts.items())]
        lines.append("  ".join(f"{name}={count}" for name, count in self.coverage.items()))
        lines += [f"longest outage in {name}: {ms} ms" for name, ms in self.outages_ms.items()]
        lines += [f"INVALID, for it proves nothing: {why}" for why in self.worthless]
        lines += [f"first {name}: {why}" for name, why in self.first.items()]
        return "\n".join(lines)


@dataclass(frozen=True)
class Seen:
    """Everything a run left behind."""

    events: Sequence[L.AnyEvent]
    kafka: Sequence[KafkaEvent]
    faults: Sequence[FaultDone]
    logs: Mapping[int, str]  # node → all it said
    compared: Compared
    states: ComparedStates
    ghosts: Sequence[str]  # deleted queues that are there
    failovers: int  # of partitions, as the next
    in_sync_changes: int
    failover_waves: int
    in_sync_waves: int
    truncations: int
    lease_ms: int
    node_at: Callable[[str], int | None]
    load_ended_at: int


def judge(seen: Seen, minima: Minima, *, dark_extra_ms: int = DARK_EXTRA_MS) -> Judgement:
    result = Judgement()
    events = [event for event in seen.events if not _is_excused(event, seen)]
    skews = [
        L.Fault(fault.injected_at, "clock", 1, fault.healed_at)
        for fault in seen.faults
        if fault.is_clock_wrong
    ]
    verdict = checker.check([*events, *skews], called_off_after_seconds=CALLED_OFF_AFTER_SECONDS)
    for name, count in verdict.counts.items():
        result.counts[name] += count
    result.first.update(verdict.first)
    history = KafkaHistory(seen.kafka)
    kafka_counts, kafka_first = check_kafka(history)
    for name, count in kafka_counts.items():
        result.counts[name] += count
    for name, why in kafka_first.items():
        result.first.setdefault(name, why)
    _check_outages(seen, result, dark_extra_ms)
    for node, log in sorted(seen.logs.items()):
        for trace in tracebacks(log):
            result.add("TRACE", f"n{node}: {trace}")
    for why in seen.compared.split:
        result.add("SPLIT", why)
    for why in seen.states.differences:
        result.add("STATE", why)
    for why in (*seen.compared.ghost, *seen.ghosts):
        result.add("GHOST", why)
    result.coverage = {
        **asdict(verdict.coverage),
        "faults": len(seen.faults),
        "kafka_acked": history.acked_count,
        "kafka_unknown": history.unknown,
        "kafka_read": history.read_count,
        "failovers": seen.failovers,
        "in_sync_changes": seen.in_sync_changes,
        "failover_waves": seen.failover_waves,
        "in_sync_waves": seen.in_sync_waves,
        "truncations": seen.truncations,
        "partitions_compared": seen.compared.partitions,
        "batches_compared": seen.compared.batches,
        "states_compared": seen.states.folds,
        "watermarks_told": sum(map(len, history.marks.values())),
    }
    del result.coverage["faults_under_load"]  # of a load that stands still while its server does
    _check_worth(seen, minima, result)
    return result


def _is_excused(event: L.AnyEvent, seen: Seen) -> bool:
    """A call that hung at a node which was stopped or gone at the time."""
    if not isinstance(event, L.Hung):
        return False
    node = seen.node_at(event.where)
    return any(
        node in fault.silent
        and event.invoked_at < fault.healed_at + BACK_MS * NS_PER_MS
        and event.at > fault.injected_at
        for fault in seen.faults
    )


def _check_outages(seen: Seen, result: Judgement, dark_extra_ms: int) -> None:
    """DARK and STUCK by queue, from the times at which messages were taken."""
    taken = _taken_at(seen.events)
    starts = sorted(fault.injected_at for fault in seen.faults)
    for number, fault in enumerate(seen.faults, 1):
        until = min((at for at in starts if at > fault.injected_at), default=seen.load_ended_at)
        worst = 0
        for queue, times in taken.items():
            outage = longest_gap(times, fault.injected_at, until) // NS_PER_MS
            worst = max(worst, outage)
            bound = seen.lease_ms + dark_extra_ms
            if fault.is_single_kill and outage > bound:
                result.add("DARK", f"{queue}: {outage} ms without a write in {fault.name}")
            stuck_at = fault.healed_at + STUCK_MS * NS_PER_MS
            if stuck_at < until and not any(fault.healed_at <= at <= stuck_at for at in times):
                result.add("STUCK", f"{queue}: no write within 15 s after {fault.name} was over")
        result.outages_ms[f"{number}. {fault.name}"] = worst
        for name, why in fault.found:
            result.add(name, f"{fault.name}: {why}")


def _taken_at(events: Iterable[L.AnyEvent]) -> dict[str, list[int]]:
    """When sends to each queue were answered, ascending."""
    queue_of: dict[L.Key, str] = {}
    taken: dict[str, list[int]] = defaultdict(list)
    for event in events:
        if isinstance(event, L.Invoke):
            queue_of[event.key] = event.queue
        elif isinstance(event, L.Ok):
            taken[queue_of[event.key]].append(event.at)
    return taken


def longest_gap(times: Sequence[int], start: int, end: int) -> int:
    """The longest stretch between ``start`` and ``end`` in which nothing happened."""
    inside = [start, *(at for at in times if start < at < end), end]
    return max((two - one for one, two in pairwise(inside)), default=0)


def _check_worth(seen: Seen, minima: Minima, result: Judgement) -> None:
    result.worthless += [
        f"{fault.name} on {', '.join(fault.victims)} had no effect"
        for fault in seen.faults
        if not fault.evidence
    ]
    for name, found, least in (
        ("sends", result.coverage["sends_ok"], minima.sends),
        ("failovers", seen.failover_waves, minima.failovers),
        ("changes of in-sync sets", seen.in_sync_waves, minima.in_sync_changes),
        ("truncations", seen.truncations, minima.truncations),
    ):
        if found < least:
            result.worthless.append(f"{found} {name}, of at least {least}")
    if not seen.faults:
        result.worthless.append("nothing was done to the cluster")
