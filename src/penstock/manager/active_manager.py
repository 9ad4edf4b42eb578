"""The work of the node that manages the cluster: it watches changes, decides, and writes decisions.

    rows, nodes         ┐                              ┌► due (one partition) ──┐
    placement requests  ├► state: partitions to check ─┤                        ├► decision writer
    topics              ┘                              └► plan (all partitions) ┘

The manager does not poll. Each change of the cluster state marks the partitions to check. Placement
considers all partitions and is not urgent: it runs in a thread, when nodes have settled, and with
long pauses. A slow round over all partitions finds changes that were missed."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final, Protocol, TypeVar

import msgspec

from penstock.manager import decisions as deciding
from penstock.manager.cluster_state import ClusterState, Requested
from penstock.manager.decision_writer import (
    DECISIONS_PER_TXN_MAX,
    AskStandings,
    DecisionWriter,
    End,
    LogEndQueries,
    cancelled,
)
from penstock.manager.decisions import Ask, Decision, DecisionKind, Policy, Topics, due
from penstock.manager.placement import Placed
from penstock.membership.cluster_view import ClusterView
from penstock.metadata import cluster_entries as stored
from penstock.metadata.cache import Cache
from penstock.metadata.cluster_entries import PartitionKey, PlacementRequest
from penstock.metadata.store import Store
from penstock.model.errors import Damaged
from penstock.model.ports import Clock
from penstock.model.topic import Topic
from penstock.replication.row import View

KEYS_PER_TURN: Final = 5 * DECISIONS_PER_TXN_MAX  # partitions checked before other tasks run
KEYS_PER_SLICE: Final = 1_000  # partitions collected for a plan before other tasks run
KEYS_PER_ROUND: Final = 5_000  # per part of the slow round over all partitions
PLAN_SHARE: Final = 20  # the pause after planning, as a multiple of the time that planning took

UNREADABLE: Final = PlacementRequest(())

T = TypeVar("T")

log = logging.getLogger(__name__)


async def wait_for(event: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


class Times(msgspec.Struct, frozen=True):
    settle_ms: int = 3_000  # time without node changes before partitions move
    settle_ms_max: int = 30_000  # limit of that time if nodes keep changing
    plan_ms_min: int = 1_000  # minimum time between two plans
    refused_ms: int = 250  # time until a rejected decision is checked again
    failed_ms: int = 1_000  # time until the next check after the store or a node failed
    ask_ms: int = 5_000
    round_ms: int = 10_000  # time between two parts of the slow round


class Catalog(Topics, Protocol):
    def all_topics(self) -> Sequence[Topic]: ...


class ActiveManager:
    def __init__(
        self,
        store: Store,
        view: ClusterView,
        *,
        manager_created: int,
        catalog: Catalog,
        ask_standings: AskStandings,
        policy: Policy,
        times: Times,
        clock: Clock,
        counts: Counter[DecisionKind],
    ) -> None:
        self.state = ClusterState()
        self.began_ms = clock.mono_ms()
        self.passes = 0  # number of checks of due partitions
        self.leaderless: set[PartitionKey] = set()  # as of the last check of each partition
        self._view = view
        self._catalog = catalog
        self._policy = policy
        self._times = times
        self._clock = clock
        self._counts = counts
        self._logged_counts = Counter(counts)  # counts that have been logged
        self._writer = DecisionWriter(
            store, manager_created=manager_created, on_end=self._ended, on_deposed=self.depose
        )
        self._queries = LogEndQueries(
            self.state, ask_standings, on_reply=self._replied, ask_ms=times.ask_ms
        )
        self._drains = Cache(
            store, stored.DRAINS_PREFIX, decode=lambda _: True, on_change=self._on_drain_change
        )
        self._places = Cache(
            store, stored.PLACEMENTS_PREFIX, decode=_decode_place, on_change=self._on_place_change
        )
        # Decisions in progress, by partition: the revision that must be seen before the partition
        # is checked again, or 0 until the store has replied.
        self._sent: dict[PartitionKey, int] = {}
        self._sent_before: dict[PartitionKey, int] = {}  # ``_sent`` at the last slow round
        self._refused = _Later(self.look_again, times.refused_ms)
        self._failed = _Later(self.look_again, times.failed_ms)
        self._wake = asyncio.Event()
        self._is_deposed = False
        self._planning: asyncio.Task[None] | None = None
        now_ms = clock.mono_ms()
        self._unsettled_since_ms = now_ms
        self._settled_at_ms = now_ms + times.settle_ms
        self._plan_at_ms = now_ms
        self._round_at_ms = now_ms + times.round_ms
        self._round: list[PartitionKey] = []

    # ── Life ─────────────────────────────────────────────────────────────────────────────────
    async def run(self) -> None:
        """Manage the cluster until another node does. Raises metadata errors if the start fails."""
        try:
            await self._drains.start()
            await self._places.start()
            await self._look_around()
            while not self._is_deposed:
                self._wake.clear()
                self.passes += 1
                await self._decide()
                self._plan_if_due()
                self._log_decisions()
                await self._wait()
        finally:
            await self._stop()

    async def _stop(self) -> None:
        self._refused.cancel()
        self._failed.cancel()
        await cancelled(filter(None, (self._planning,)))
        for part in (self._queries, self._writer, self._places, self._drains):
            await part.stop()

    async def _look_around(self) -> None:
        """Load nodes before rows, because without nodes all partitions would look leaderless."""
        self.saw_nodes()
        for at, key in enumerate(list(self._view.rows)):
            self.saw_row(key, self._view.rows.get(key))
            if at % KEYS_PER_TURN == 0:
                await asyncio.sleep(0)
        self.state.mark(self.state.missing(self._catalog.all_topics()))

    async def _wait(self) -> None:
        at_ms = self._round_at_ms
        if self.state.is_plan_old and self._planning is None:
            at_ms = min(at_ms, self._next_plan_ms())
        seconds = max(0, at_ms - self._clock.mono_ms()) / 1_000
        await wait_for(self._wake, seconds)
        if self._clock.mono_ms() >= self._round_at_ms:
            self._go_round()

    def _go_round(self) -> None:
        self._round_at_ms = self._clock.mono_ms() + self._times.round_ms
        if not self._round:
            missing = self.state.missing(self._catalog.all_topics())
            self._round = [*self.state.rows, *self.state.requests, *missing]
            self.state.is_plan_old = True
        self.state.mark(self._round[-KEYS_PER_ROUND:])
        del self._round[-KEYS_PER_ROUND:]
        for key, revision in self._sent_before.items():
            if revision and self._sent.get(key) == revision:
                del self._sent[key]  # the watch has missed this revision
                self.state.mark((key,))
        self._sent_before = dict(self._sent)

    def depose(self) -> None:
        self._is_deposed = True
        self._wake.set()

    # ── Updates ──────────────────────────────────────────────────────────────────────────────
    def saw_nodes(self) -> None:
        now_ms = self._clock.mono_ms()
        if now_ms >= self._settled_at_ms:
            self._unsettled_since_ms = now_ms
        self._settled_at_ms = min(
            now_ms + self._times.settle_ms, self._unsettled_since_ms + self._times.settle_ms_max
        )
        self.state.see_nodes(self._view.nodes, self._view.incarnations)
        self._wake.set()

    def saw_row(self, key: PartitionKey, view: View | None) -> None:
        self.state.see_row(key, view)
        self._queries.forget(key)
        awaited = self._sent.get(key, 0)
        if awaited and (view is None or view.version >= awaited):
            del self._sent[key]
        self._wake.set()

    def saw_topic(self, before: Topic | None, after: Topic | None) -> None:
        topic = after or before
        if topic is not None:
            self.state.mark(stored.partitions_of(topic))
            self.state.is_plan_old = True
            self._wake.set()

    def _on_drain_change(self, path: str, _before: bool | None, after: bool | None) -> None:
        node = _key_in(path, stored.node_of)
        if node is not None:
            draining = self.state.draining
            self.state.see_draining(draining | {node} if after else draining - {node})
            self._wake.set()

    def _on_place_change(
        self, path: str, _before: PlacementRequest | None, after: PlacementRequest | None
    ) -> None:
        key = _key_in(path, stored.partition_of)
        if key is None:
            return
        if after is UNREADABLE:
            log.warning("drain or placement request unreadable", extra={"partition": str(key)})
        replicas = after.replicas if after else ()
        request = Requested(self._places.version(path), replicas) if replicas else None
        self.state.see_request(key, request)
        self._wake.set()

    def _replied(self, keys: Sequence[PartitionKey], is_replied: bool) -> None:
        if is_replied:
            self.look_again(keys)
        elif keys:
            self._failed.add(keys)

    def look_again(self, keys: Iterable[PartitionKey]) -> None:
        self.state.mark(keys)
        self._wake.set()

    # ── Decisions for one partition ──────────────────────────────────────────────────────────
    async def _decide(self) -> None:
        state = self.state
        while state.due and not self._is_deposed:
            await self._writer.room()
            decisions = []
            for key in list(islice(state.due, KEYS_PER_TURN)):
                del state.due[key]
                view = state.rows.get(key)
                if view is None or state.is_led(view.row):
                    self.leaderless.discard(key)
                else:
                    self.leaderless.add(key)
                if key in self._sent:
                    continue  # checked again when the pending decision has ended
                found = due(state, key, self._catalog, self._policy, self._queries.standings)
                if isinstance(found, Ask):
                    self._queries.want(key, found.nodes)
                elif found is not None:
                    decisions.append(found)
                    if found.kind is DecisionKind.CREATED and found.change is not None:
                        state.launch(key, found.change.row.replicas)
            self._send(decisions)
            await asyncio.sleep(0)

    def _send(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            self._sent[decision.key] = 0
        self._writer.send(decisions)

    def _ended(self, decision: Decision, end: End, revision: int) -> None:
        key = decision.key
        del self._sent[key]
        if end is End.DONE:
            self._done(decision, revision)
        elif revision:
            self._await(decision, revision)
            self.state.mark((key,))  # the watch may have reported the revision already
        else:
            self.state.land(key)
            self.state.is_plan_old = True
            (self._refused if end is End.REFUSED else self._failed).add((key,))
        self._wake.set()

    def _done(self, decision: Decision, revision: int) -> None:
        key = decision.key
        self._counts[decision.kind] += 1
        if decision.kind is DecisionKind.RECOVERED and decision.change is not None:
            log.warning(
                "no intact in-sync replica, electing the longest log: data loss possible",
                extra={"partition": str(key), "node": decision.change.row.leader},
            )
        if decision.request is not None or decision.is_request_dropped:
            request = None if decision.request is None else PlacementRequest(decision.request)
            self._places.apply(stored.placement_key(key), request, version=revision)
        if decision.change is not None or decision.is_row_dropped:
            self._await(decision, revision)
        self.state.mark((key,))

    def _await(self, decision: Decision, revision: int) -> None:
        view = self.state.rows.get(decision.key)
        if view is None:
            is_seen = decision.kind is not DecisionKind.CREATED
        else:
            is_seen = not decision.is_row_dropped and view.version >= revision
        if not is_seen:
            self._sent[decision.key] = revision

    # ── Planning for all partitions ──────────────────────────────────────────────────────────
    def _next_plan_ms(self) -> int:
        return max(self._plan_at_ms, self._settled_at_ms)

    def _plan_if_due(self) -> None:
        is_due = self.state.is_plan_old and self._clock.mono_ms() >= self._next_plan_ms()
        if is_due and self._planning is None:
            self.state.is_plan_old = False
            self._planning = asyncio.create_task(self._plan(), name="manager plan")
            self._planning.add_done_callback(self._planned)

    def _planned(self, task: asyncio.Task[None]) -> None:
        self._planning = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("planning partition moves failed", exc_info=error)
        self._wake.set()

    async def _plan(self) -> None:
        policy, state = self._policy, self.state
        begun_ms = self._clock.mono_ms()
        now = await self._situation()
        # Use a thread, because planning may take longer than clients of this node should wait.
        planned = await asyncio.to_thread(deciding.targets, now)
        await self._writer.room()
        decisions = deciding.beginnings(state, now, planned, policy)
        if policy.is_balancing:
            decisions += deciding.preferred(state, count_max=policy.leader_changes_max)
        free = {one.key: one for one in reversed(decisions) if one.key not in self._sent}
        self._send(list(free.values()))
        ended_ms = self._clock.mono_ms()
        pause_ms = max(self._times.plan_ms_min, (ended_ms - begun_ms) * PLAN_SHARE)
        self._plan_at_ms = ended_ms + pause_ms

    async def _situation(self) -> deciding.Situation:
        """Collect the input of a plan, part by part so that other tasks can run."""
        state, partitions = self.state, dict[PartitionKey, Placed]()
        keys = list(state.rows)
        for start in range(0, len(keys), KEYS_PER_SLICE):
            some = keys[start : start + KEYS_PER_SLICE]
            partitions.update(deciding.placed(state, some, self._catalog, self._policy))
            await asyncio.sleep(0)
        return deciding.Situation(partitions, list(state.hosts), state.draining, self._policy)

    def _log_decisions(self) -> None:
        if not self._sent and self._logged_counts != self._counts:
            new = self._counts - self._logged_counts
            self._logged_counts = Counter(self._counts)
            done = {f"{kind.value}_count": count for kind, count in new.items()}
            log.info("partition changes made by the manager", extra=done)


class _Later:
    def __init__(self, look: Callable[[Iterable[PartitionKey]], None], delay_ms: int) -> None:
        self._look = look
        self._delay_seconds = delay_ms / 1_000
        self._keys: dict[PartitionKey, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, keys: Iterable[PartitionKey]) -> None:
        self._keys.update(dict.fromkeys(keys))
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._delay_seconds, self._fire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self._timer = None
        keys, self._keys = self._keys, {}
        self._look(keys)


def _key_in(path: str, key_of: Callable[[str], T]) -> T | None:
    try:
        return key_of(path)
    except Damaged as error:
        log.warning("drain or placement request unreadable", extra={"reason": str(error)})
        return None


def _decode_place(value: bytes) -> PlacementRequest:
    try:
        return stored.decode_placement("", value)
    except Damaged:
        return UNREADABLE
