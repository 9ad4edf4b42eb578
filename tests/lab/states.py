"""STATE, on the disks of nodes that have ended: what a copy of a partition is folded into is the
same on every node, and the same whether the fold begins at the node's checkpoint or at the log's
beginning.

The product's own fold does the reading, in this process, which saw nothing of the run. Compared
are the cursors of a queue and its shares by the hash that is made for it, what is remembered of
Kafka producers, and how many deduplication ids are. A copy that begins in the middle (its node was
wiped, and the log had been trimmed by then) has counted less: of such a one only the extent is
compared, which is where it begins and how much there is. Opening a log mends it as a start of its
node would, so whoever wants the disks as they were takes a copy before."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.cursor_state import state_hash
from tests.lab.replicas import has_batches

from penstock.broker.context.context import BrokerContext
from penstock.broker.context.disk import DiskBudget
from penstock.broker.partition.replay import Replay, forget_beyond, read_checkpoint
from penstock.cursor.leases.lease import LeaseCursor
from penstock.log.log import Log, LogConfig
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.topics.catalog import StoredCatalog
from penstock.model.topic import Topic
from penstock.telemetry.clock import SystemClock
from penstock.telemetry.metrics import Meter


class StandingClock:
    """Every copy is read at the same moment."""

    def __init__(self) -> None:
        clock = SystemClock()
        self._wall_ms, self._mono_ms = clock.wall_ms(), clock.mono_ms()

    def wall_ms(self) -> int:
        return self._wall_ms

    def mono_ms(self) -> int:
        return self._mono_ms


@dataclass(frozen=True)
class State:
    """What one reading of one copy came to. ``whole`` is None where the beginning is missing."""

    extent: tuple[tuple[int, int], ...]
    whole: tuple[object, ...] | None


@dataclass
class ComparedStates:
    partitions: int = 0
    folds: int = 0
    differences: list[str] = field(default_factory=list)


def compare_states(
    folders: Mapping[str, Mapping[str, Path]], topics: Sequence[Topic]
) -> ComparedStates:
    """``folders``: of each partition (topic id/index), the copies that have all that is committed.
    Partitions of topics that are gone, and those nobody ever wrote to, have no state."""
    return asyncio.run(_compare(folders, topics))


async def _compare(
    folders: Mapping[str, Mapping[str, Path]], topics: Sequence[Topic]
) -> ComparedStates:
    found = ComparedStates()
    by_id = {topic.topic_id: topic for topic in topics}
    with tempfile.TemporaryDirectory() as scratch:
        store = await SqliteStore.open(Path(scratch) / "nothing.sqlite3")
        pool = ThreadPoolExecutor(1)
        clock = StandingClock()
        context = BrokerContext(
            folder=Path(scratch),
            clock=clock,
            pool=pool,
            disk=DiskBudget(Path(scratch), clock),
            catalog=StoredCatalog(store),
            meter=Meter(),
            log=LogConfig(),
        )
        try:
            for partition, copies in folders.items():
                topic_id, _, index = partition.partition("/")
                there = {node: path for node, path in copies.items() if path.is_dir()}
                topic = by_id.get(topic_id)
                if topic is None or not any(map(has_batches, there.values())):
                    continue
                shares = [one for one in topics if one.source_id == topic_id]
                reader = _Reader(topic, int(index), shares, context)
                _compare_partition(partition, there, reader, found)
        finally:
            pool.shutdown()
            await store.close()
    return found


def _compare_partition(
    partition: str, copies: Mapping[str, Path], reader: _Reader, found: ComparedStates
) -> None:
    found.partitions += 1
    with ExitStack() as stack:
        logs = {node: stack.enter_context(reader.opened(path)) for node, path in copies.items()}
        end = min(log.end_offset for log in logs.values())
        states: dict[str, State] = {}
        for node, log in logs.items():
            checkpoint = read_checkpoint(log)
            if checkpoint is not None and checkpoint.offset > end:
                why = f"{node} has a checkpoint at {checkpoint.offset}, and a copy ends at {end}"
                found.differences.append(f"{partition}: {why}")
                return
            log.truncate(end)  # what follows was not committed: a fold reads the whole log
            if checkpoint is not None:
                states[f"{node} from {checkpoint.offset}"] = reader.read(log, end)
                forget_beyond(log, -1)
            states[f"{node} from {log.start_offset}"] = reader.read(log, end)
        found.folds += len(states)
        why_not = difference(states)
        if why_not is not None:
            found.differences.append(f"{partition} at {end}: {why_not}")


class _Reader:
    """Folds copies of one partition."""

    def __init__(
        self, topic: Topic, index: int, shares: Sequence[Topic], context: BrokerContext
    ) -> None:
        self._topic = topic
        self._index = index
        self._shares = shares
        self._context = context

    @contextmanager
    def opened(self, folder: Path) -> Iterator[Log]:
        log = Log.open(folder, LogConfig(), now_ms=self._context.clock.wall_ms())
        try:
            yield log
        finally:
            log.close(clean=False)

    def read(self, log: Log, end: int) -> State:
        fold = Replay(log, self._topic, self._index, shares=self._shares, context=self._context)
        try:
            fold.advance(end)
        except (KeyError, AssertionError) as error:
            return State((), (f"cannot be folded: {error!r}",))
        fold.finish()
        if fold.damage is not None:
            return State((), (f"damaged: {fold.damage}",))
        cursors = [fold.cursor, *(cursor for _, cursor in fold.shares)]
        extent = tuple(_extent(cursor) for cursor in cursors)
        return State(extent, _whole(fold, cursors) if fold.begun_at == 0 else None)


def _extent(cursor: LeaseCursor) -> tuple[int, int]:
    """Where it begins, and how much there is."""
    stats = cursor.stats(now_ms=0)
    return cursor.low_offset(), stats.visible + stats.in_flight + stats.delayed


def _whole(restored: Replay, cursors: Sequence[LeaseCursor]) -> tuple[object, ...]:
    producers = sorted(
        (
            one.producer_id,
            one.producer_epoch,
            one.last_sequence,
            one.coordinator_epoch,
            one.transaction_start,
        )
        for one in restored.producers.seen(wall_ms=0)
    )
    return (*(state_hash(one).hex() for one in cursors), producers, len(restored.dedup))


def difference(states: Mapping[str, State]) -> str | None:
    """Between any two readings, in words; None when they agree."""
    (first, expected), *others = states.items()
    for name, state in others:
        if state.extent != expected.extent:
            return f"{first} begins and holds {expected.extent}, {name} {state.extent}"
        if None not in (state.whole, expected.whole) and state.whole != expected.whole:
            return f"{first} comes to {expected.whole}, {name} to {state.whole}"
        if expected.whole is None:
            first, expected = name, state
    return None
