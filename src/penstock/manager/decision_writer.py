"""Writes the manager's decisions to the store, many per transaction and several transactions at a
time, and asks nodes for the end offsets of their logs.

A transaction succeeds only if everything its decisions rely on is unchanged and this node is still
the manager. If one of its decisions is outdated, each is tried in its own transaction. If the
outcome of a transaction is unknown, its rows are read again. To repeat a decision is safe, because
the store rejects the second write (rules R2 and R3 of docs/replication.md)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Final

from penstock.manager.cluster_state import ClusterState
from penstock.manager.decisions import Decision
from penstock.metadata import cluster_entries as stored
from penstock.metadata.cluster_entries import PartitionKey, PlacementRequest
from penstock.metadata.store import CHANGES_PER_TXN_MAX, Store
from penstock.model.errors import PenstockError, VersionConflict
from penstock.replication.election import Standing
from penstock.replication.row import View
from penstock.wire.internal.faults import DeadlineExceeded, OutcomeUnknown

DECISIONS_PER_TXN_MAX: Final = 48
TXNS_MAX: Final = 32  # transactions in progress at a time

log = logging.getLogger(__name__)


async def cancelled(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


class End(Enum):
    DONE = "done"
    REFUSED = "refused"  # something the decision relies on has changed
    FAILED = "failed"  # the store failed, or the outcome is unknown


# Called with the outcome of a decision, and the revision in which its row changed (0 if unknown).
OnEnd = Callable[[Decision, End, int], None]


class DecisionWriter:
    def __init__(
        self, store: Store, *, manager_created: int, on_end: OnEnd, on_deposed: Callable[[], None]
    ) -> None:
        self._store = store
        self._manager_created = manager_created
        self._on_end = on_end
        self._on_deposed = on_deposed
        self._is_troubled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def room(self) -> None:
        await self._has_room.wait()

    def send(self, decisions: Iterable[Decision]) -> None:
        """Start writing the decisions. Calls ``on_end`` for each that is written or has failed."""
        for some in _together(decisions):
            self._start(some)

    async def stop(self) -> None:
        """Cancel the transactions in progress. The next manager sees their outcome in the rows."""
        await cancelled(self._tasks)

    def _start(self, decisions: Sequence[Decision]) -> None:
        task = asyncio.create_task(self._carry(decisions), name="manager decisions")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if len(self._tasks) >= TXNS_MAX:
            self._has_room.clear()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if len(self._tasks) < TXNS_MAX:
            self._has_room.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("applying a manager decision failed", exc_info=error)

    async def _carry(self, decisions: Sequence[Decision]) -> None:
        try:
            revision = await self._txn(decisions)
        except VersionConflict:
            await self._refused(decisions)
        except (OutcomeUnknown, DeadlineExceeded) as error:
            await self._read_again(decisions, error)
        except PenstockError as error:
            self._fail(decisions, error)
        else:
            self._is_troubled = False
            for decision in decisions:
                self._on_end(decision, End.DONE, revision)

    async def _txn(self, decisions: Sequence[Decision]) -> int:
        compare: list[tuple[str, int]] = []
        created = {stored.MANAGER_KEY: self._manager_created}
        puts: list[tuple[str, bytes]] = []
        deletes: list[str] = []
        for decision in decisions:
            key = decision.key
            row_at, request_at = stored.partition_key(key), stored.placement_key(key)
            compare.append((row_at, decision.version))
            if decision.request_version is not None:
                compare.append((request_at, decision.request_version))
            if decision.change is not None:
                puts.append((row_at, stored.encode_entry(decision.change.row)))
                for node, incarnation in decision.change.incarnations.items():
                    created[stored.node_key(node)] = incarnation
            if decision.is_row_dropped:
                deletes.append(row_at)
            if decision.request is not None:
                puts.append((request_at, stored.encode_entry(PlacementRequest(decision.request))))
            if decision.is_request_dropped:
                deletes.append(request_at)
        return await self._store.txn(
            compare=compare, compare_created=tuple(created.items()), puts=puts, deletes=deletes
        )

    async def _refused(self, decisions: Sequence[Decision]) -> None:
        try:
            entry = await self._store.get(stored.MANAGER_KEY)
        except PenstockError as error:
            self._fail(decisions, error)
            return
        if entry is None or entry.create_revision != self._manager_created:
            self._on_deposed()
        elif len(decisions) > 1:
            for decision in decisions:
                self._start((decision,))
            return
        for decision in decisions:
            self._on_end(decision, End.REFUSED, 0)

    async def _read_again(self, decisions: Sequence[Decision], error: PenstockError) -> None:
        log.warning(
            "unknown whether manager decisions were written",
            extra={"count": len(decisions), "reason": str(error)},
        )
        for at, decision in enumerate(decisions):
            try:
                entry = await self._store.get(stored.partition_key(decision.key))
            except PenstockError as again:
                self._fail(decisions[at:], again)
                return
            version = 0 if entry is None else entry.version
            self._on_end(decision, End.FAILED, version if version > decision.version else 0)

    def _fail(self, decisions: Sequence[Decision], error: PenstockError) -> None:
        if not self._is_troubled:  # logged once, not for each of perhaps thousands of decisions
            self._is_troubled = True
            log.warning("applying manager decisions failed", extra={"reason": str(error)})
        for decision in decisions:
            self._on_end(decision, End.FAILED, 0)


def _together(decisions: Iterable[Decision]) -> Iterable[Sequence[Decision]]:
    """Group decisions into transactions of limited size."""
    some: list[Decision] = []
    created: dict[int, int] = {}
    for decision in decisions:
        wanted = {} if decision.change is None else decision.change.incarnations
        comparisons = 2 * (len(some) + 1) + len({*created, *wanted}) + 1
        if (
            len(some) == DECISIONS_PER_TXN_MAX
            or comparisons > CHANGES_PER_TXN_MAX
            or any(created.get(node, made) != made for node, made in wanted.items())
        ):
            yield some
            some, created = [], {}
        some.append(decision)
        created.update(wanted)
    if some:
        yield some


KEYS_PER_QUERY_MAX: Final = 1_000

AskStandings = Callable[[int, Sequence[PartitionKey]], Awaitable[Mapping[PartitionKey, Standing]]]
OnReply = Callable[[Sequence[PartitionKey], bool], None]


class LogEndQueries:
    """Requests to nodes for the end offsets of their logs, for partitions without a known intact
    replica. A reply is valid until the node restarts or the row changes. One request per node, for
    many partitions, is in progress at a time."""

    def __init__(
        self, state: ClusterState, ask: AskStandings, *, on_reply: OnReply, ask_ms: int
    ) -> None:
        self._state = state
        self._ask = ask
        self._on_reply = on_reply
        self._ask_seconds = ask_ms / 1_000
        # By partition and node, with the node's incarnation and the version of the row then.
        self._reports: dict[PartitionKey, dict[int, tuple[int, int, Standing]]] = {}
        self._wanted: dict[int, dict[PartitionKey, None]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def standings(self, key: PartitionKey, view: View) -> Mapping[int, Standing]:
        incarnations = self._state.incarnations
        return {
            node: standing
            for node, (incarnation, version, standing) in self._reports.get(key, {}).items()
            if (incarnation, version) == (incarnations.get(node), view.version)
        }

    def forget(self, key: PartitionKey) -> None:
        self._reports.pop(key, None)

    def want(self, key: PartitionKey, nodes: Sequence[int]) -> None:
        for node in nodes:
            self._wanted.setdefault(node, {})[key] = None
            if node not in self._tasks:
                task = asyncio.create_task(self._ask_all(node), name=f"standings of node {node}")
                self._tasks[node] = task

    async def stop(self) -> None:
        await cancelled(self._tasks.values())

    async def _ask_all(self, node: int) -> None:
        try:
            await asyncio.sleep(0)  # wait for other requests for the same node
            while wanted := self._wanted.pop(node, None):
                keys = list(islice(wanted, KEYS_PER_QUERY_MAX))
                if len(wanted) > len(keys):
                    self._wanted[node] = {key: None for key in wanted if key not in set(keys)}
                await self._ask_some(node, keys)
        finally:
            del self._tasks[node]

    async def _ask_some(self, node: int, keys: Sequence[PartitionKey]) -> None:
        # Read before the request, because the node may restart before it replies.
        incarnation = self._state.incarnations.get(node)
        versions = {key: view.version for key in keys if (view := self._state.rows.get(key))}
        if incarnation is None:
            return  # when the node returns, its partitions become due again
        try:
            async with asyncio.timeout(self._ask_seconds):
                replies = await self._ask(node, list(versions))
        except (PenstockError, TimeoutError) as error:
            log.warning(
                "node did not report the end offsets of its logs",
                extra={"node": node, "partitions": len(versions), "reason": str(error)},
            )
            self._on_reply(keys, False)
            return
        for key, version in versions.items():
            if key in replies:
                report = (incarnation, version, replies[key])
                self._reports.setdefault(key, {})[node] = report
        self._on_reply([key for key in keys if key in replies], True)
        self._on_reply([key for key in keys if key not in replies], False)
