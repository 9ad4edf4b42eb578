"""Calls out: a callee that hangs or breaks takes nobody else with it, and is called again when it
is back. The callees are real or small; what is injected is only that they do not answer."""

import asyncio
import itertools
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.stage import on_stage
from tests.unit.frontend.aws.test_pipeline import json_call
from tests.unit.frontend.limits.test_quotas import limited
from tests.unit.frontend.memory import (
    MemoryBackend,
    MemoryClock,
    MemoryIdentities,
    MemoryMeter,
    Rig,
)

from penstock.calls.bulkhead import FAILING_MS_MAX, CalleeUnavailable
from penstock.calls.callees import Callees, guarded
from penstock.flow.breaker import FAILURES_MAX, OPEN_MS_MIN, BreakerState
from penstock.frontend.aws.context import FrontendConfig
from penstock.frontend.aws.pipeline import Frontend
from penstock.frontend.limited_calls import GuardedCatalog
from penstock.frontend.limits.quotas import TenantQuotas
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Change, Store, Txn
from penstock.metadata.topics.catalog import StoredCatalog
from penstock.model.call_times import PARKED_MARGIN_MS
from penstock.model.calls import Append, BrokerCall, Ends, Lease, R, Stats
from penstock.model.errors import Throttled, TopicNotFound
from penstock.model.message import Appended, Delivery, Message
from penstock.model.ports import LeaseRequest
from penstock.model.topic import Kind, QueueSettings, QueueStats, Topic
from penstock.net.kafka.listener import EagerCoroutine
from penstock.telemetry import families

SOON_S = 10.0  # for what must not wait for a callee that hangs


def topic_of(name: str, *, account: str = "000000000000", partitions: int = 1) -> Topic:
    return Topic(
        topic_id=name,
        account=account,
        region="us-east-1",
        name=name,
        kind=Kind.STANDARD,
        partition_count=partitions,
        created_at_ms=0,
        modified_at_ms=0,
        receipt_key=bytes(32),
        settings=QueueSettings(),
    )


def message() -> Message:
    return Message(message_id=secrets.token_bytes(16), body=b"m")


class Switched(MemoryBackend):
    """Calls for the topics named in ``stuck`` wait at the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck: set[str] = set()
        self.gate = asyncio.Event()
        self.errors: list[Exception] = []  # raised by the next calls, one each
        self.stats_count = 0

    async def _pass(self, topic: Topic) -> None:
        if self.errors:
            raise self.errors.pop(0)
        if topic.name in self.stuck:
            await self.gate.wait()

    async def append(self, call: Append) -> Sequence[Appended]:
        await self._pass(call.topic)
        return await super().append(call)

    async def lease(self, call: Lease) -> Sequence[Delivery]:
        await self._pass(call.topic)
        return await super().lease(call)

    async def stats(self, call: Stats) -> QueueStats:
        self.stats_count += 1
        await self._pass(call.topic)
        return await super().stats(call)


class World:
    """Nodes named as the topics that they serve, up to the first dot."""

    def __init__(self, **callees: Any) -> None:
        self.clock = MemoryClock()
        self.backend = Switched()
        self.callees = Callees(self.clock, **callees)

    def call(self, call: BrokerCall[R]) -> Coroutine[Any, Any, R]:
        topic = call.topic
        assert topic is not None
        node = topic.name.partition(".")[0]
        return guarded(self.callees.backend(node), self.backend, call)

    async def send(self, name: str, account: str = "000000000000") -> None:
        async with asyncio.timeout(SOON_S):
            await self.call(Append(topic_of(name, account=account), 0, (message(),)))

    async def be_late(self, name: str, account: str = "000000000000", *, times: int = 1) -> None:
        """So many calls at once, all of them late."""
        sends = (self.send(name, account) for _ in range(times))
        for outcome in await asyncio.gather(*sends, return_exceptions=True):
            assert isinstance(outcome, CalleeUnavailable), outcome
            assert "in time" in str(outcome)

    def state(self, name: str) -> BreakerState:
        return self.callees.backend(name).state()


async def test_a_node_that_hangs_fills_its_own_compartment_and_no_other() -> None:
    world = World(backend_calls_max=5)
    world.backend.stuck = {"slow"}
    held = [
        asyncio.create_task(world.call(Append(topic_of("slow"), 0, (message(),)))) for _ in range(5)
    ]
    await asyncio.sleep(0)
    with pytest.raises(Throttled, match="backend:slow"):
        await world.send("slow")
    for _ in range(50):
        await world.send("quick")
    assert world.callees.backend("slow").in_use == 5
    assert world.callees.backend("quick").in_use == 0
    world.backend.gate.set()
    await asyncio.gather(*held)
    await world.send("slow")


async def test_a_partition_that_is_late_is_refused_at_once_and_tried_again_later() -> None:
    world = World(backend_deadline_ms=40)
    world.backend.stuck = {"n.slow"}
    for _ in range(FAILURES_MAX):
        await world.be_late("n.slow")
    with pytest.raises(CalleeUnavailable, match="backend:n does not reply for this partition"):
        await world.send("n.slow")
    assert world.state("n") is BreakerState.CLOSED, "the node answers"
    await world.send("n.quick")
    with pytest.raises(CalleeUnavailable, match="does not reply for this partition"):
        await world.send("n.slow")  # the answer of another partition says nothing about this one
    world.backend.gate.set()
    world.clock.now_ms += OPEN_MS_MIN
    await world.send("n.slow")
    await world.send("n.slow")
    assert world.callees.backend("n").in_use == 0


async def test_the_probe_of_a_partition_is_one_at_a_time_and_its_pauses_grow() -> None:
    world = World(backend_deadline_ms=40)
    world.backend.stuck = {"n.slow"}
    await world.be_late("n.slow", times=FAILURES_MAX)
    world.clock.now_ms += OPEN_MS_MIN
    probe = asyncio.create_task(world.be_late("n.slow"))
    while not world.callees.backend("n").in_use:
        await asyncio.sleep(0)
    with pytest.raises(CalleeUnavailable, match="does not reply for this partition"):
        await world.send("n.slow")
    await probe
    world.clock.now_ms += OPEN_MS_MIN
    with pytest.raises(CalleeUnavailable, match="does not reply for this partition"):
        await world.send("n.slow")


async def test_late_calls_of_one_tenant_never_cut_a_node_off() -> None:
    world = World(backend_deadline_ms=40)
    names = [f"n.{number}" for number in range(12)]
    world.backend.stuck = set(names)
    for _ in range(2):
        await asyncio.gather(*(world.be_late(name, "111111111111") for name in names))
    assert world.state("n") is BreakerState.CLOSED
    for _ in range(10):
        await world.send("n.other", "222222222222")
    topic = topic_of("n.waits", account="222222222222")
    await world.be_late("n.0", "111111111111")
    await world.call(Lease(topic, LeaseRequest(wait_ms=20_000)))
    assert world.backend.asked[-1].wait_ms == 20_000, "the long poll of another tenant still waits"


async def test_late_calls_of_two_tenants_cut_a_node_off() -> None:
    world = World(backend_deadline_ms=40)
    names = [f"n.{number}" for number in range(FAILURES_MAX)]
    world.backend.stuck = {*names, "n.other"}
    await asyncio.gather(*(world.be_late(name, "111111111111") for name in names))
    assert world.state("n") is BreakerState.CLOSED
    await world.be_late("n.other", "222222222222")
    assert world.state("n") is BreakerState.OPEN
    with pytest.raises(CalleeUnavailable, match="backend:n does not reply"):
        await world.send("n.quick", "333333333333")
    world.backend.gate.set()
    world.clock.now_ms += OPEN_MS_MIN
    await world.send("n.quick", "333333333333")
    assert world.state("n") is BreakerState.CLOSED


async def test_lost_connections_cut_a_node_off_and_errors_of_one_file_do_not() -> None:
    world = World()
    world.backend.errors = [OSError(5, "Input/output error")] * FAILURES_MAX
    for _ in range(FAILURES_MAX):
        with pytest.raises(CalleeUnavailable):
            await world.send("n.damaged")
    with pytest.raises(CalleeUnavailable, match="does not reply for this partition"):
        await world.send("n.damaged")
    assert world.state("n") is BreakerState.CLOSED
    await world.send("n.quick")
    world.backend.errors = [ConnectionResetError("gone")] * FAILURES_MAX
    for _ in range(FAILURES_MAX):
        with pytest.raises(CalleeUnavailable):
            await world.send("n.quick")
    assert world.state("n") is BreakerState.OPEN


async def test_a_partition_that_nobody_calls_any_more_is_forgotten() -> None:
    world = World(backend_deadline_ms=40)
    world.backend.stuck = {"n.deleted"}
    await world.be_late("n.deleted", times=FAILURES_MAX)
    node = world.callees.backend("n")
    assert node.is_suspect(topic_of("n.deleted"), 0)
    world.clock.now_ms += FAILING_MS_MAX
    async with asyncio.timeout(SOON_S):
        while node.is_suspect(topic_of("n.deleted"), 0):
            await world.send("n.quick")
            await asyncio.sleep(0.01)


async def test_partitions_that_fail_are_remembered_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.calls.bulkhead.FAILING_PARTITIONS_MAX", 3)
    world = World(backend_deadline_ms=40)
    names = [f"n.{number}" for number in range(5)]
    world.backend.stuck = set(names)
    await asyncio.gather(*(world.be_late(name, times=FAILURES_MAX) for name in names))
    node = world.callees.backend("n")
    assert sum(node.is_suspect(topic_of(name), 0) for name in names) == 3
    await world.send("n.quick")


async def test_a_cancellation_by_the_caller_stays_one_and_is_no_failure() -> None:
    world = World(backend_deadline_ms=10_000)
    world.backend.stuck = {"slow"}
    for _ in range(2 * FAILURES_MAX):
        task = asyncio.create_task(world.call(Append(topic_of("slow"), 0, (message(),))))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert world.state("slow") is BreakerState.CLOSED
    assert world.callees.backend("slow").in_use == 0


async def test_parked_calls_are_counted_apart_and_have_their_wait_and_a_margin() -> None:
    world = World(backend_calls_max=2, backend_deadline_ms=20)
    world.backend.stuck = {"q"}
    topic, request = topic_of("q"), LeaseRequest(wait_ms=20_000)
    parked = [asyncio.create_task(world.call(Lease(topic, request))) for _ in range(50)]
    await asyncio.sleep(0.1)  # several deadlines of a call that does not wait
    callee = world.callees.backend("q")
    assert (callee.parked, callee.in_use) == (50, 0)
    assert not any(task.done() for task in parked)
    world.backend.stuck = set()
    await world.send("q")
    world.backend.gate.set()
    await asyncio.gather(*parked)
    assert callee.parked == 0
    assert PARKED_MARGIN_MS >= 10 * 1_000


async def test_a_parked_call_that_outlasts_its_margin_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.calls.bulkhead.PARKED_MARGIN_MS", 10)
    monkeypatch.setattr("penstock.calls.bulkhead.PARKED_SWEEP_SECONDS", 0.0)
    world = World(backend_deadline_ms=40)
    world.backend.stuck = {"q"}
    with pytest.raises(CalleeUnavailable, match="in time"):
        await asyncio.wait_for(world.call(Lease(topic_of("q"), LeaseRequest(wait_ms=20))), SOON_S)


async def test_nobody_parks_at_a_callee_that_has_just_failed() -> None:
    world = World()
    world.backend.errors = [ConnectionResetError("gone")]
    topic = topic_of("q")
    with pytest.raises(CalleeUnavailable):
        await world.call(Lease(topic, LeaseRequest(wait_ms=20_000)))
    await world.call(Lease(topic, LeaseRequest(wait_ms=20_000)))
    await world.call(Lease(topic, LeaseRequest(wait_ms=20_000)))
    assert [asked.wait_ms for asked in world.backend.asked] == [0, 20_000]


async def test_reads_are_tried_once_more_when_the_way_broke_and_changes_never() -> None:
    world = World()
    topic, callee = topic_of("q"), world.callees.metadata
    world.backend.errors = [ConnectionResetError("gone")]
    assert (await callee.read(lambda: world.backend.call(Stats(topic)))).visible == 0
    world.backend.errors = [ConnectionResetError("gone")] * 3
    with pytest.raises(CalleeUnavailable):
        await callee.read(lambda: world.backend.call(Stats(topic)))
    assert world.backend.stats_count == 4
    with pytest.raises(CalleeUnavailable):
        await callee.call(lambda: world.backend.call(Append(topic, 0, (message(),))))
    assert world.backend.records == {}
    world.backend.errors = [TopicNotFound("q")]
    with pytest.raises(TopicNotFound):
        await callee.read(lambda: world.backend.call(Stats(topic)))
    assert world.backend.stats_count == 5, "an answer is not asked for twice"


async def test_a_call_begun_outside_of_a_task_counts_as_late_and_keeps_its_place() -> None:
    world = World(backend_deadline_ms=40)
    world.backend.stuck = {"slow"}
    begun: list[EagerCoroutine[Sequence[Appended]]] = []

    def begin() -> None:  # as a listener does when bytes arrive
        accounts = ("111111111111", "222222222222") * FAILURES_MAX
        topics = [topic_of("slow", account=account) for account in accounts[:FAILURES_MAX]]
        begun.extend(EagerCoroutine(world.call(Append(topic, 0, (message(),)))) for topic in topics)

    asyncio.get_running_loop().call_soon(begin)
    callee = world.callees.backend("slow")
    async with asyncio.timeout(SOON_S):
        while world.state("slow") is not BreakerState.OPEN:
            await asyncio.sleep(0.01)
    assert callee.in_use == FAILURES_MAX
    world.backend.gate.set()
    for each in begun:
        assert len(await each) == 1
    assert callee.in_use == 0
    assert world.state("slow") is BreakerState.CLOSED, "it has answered after all"


async def test_several_late_calls_of_one_task_are_all_cut_off() -> None:
    world = World(backend_deadline_ms=40)
    world.backend.stuck = {"slow"}
    appends = [Append(topic_of("slow"), 0, (message(),)) for _ in range(3)]
    calls = [EagerCoroutine(world.call(each)) for each in appends]
    for each in calls:
        with pytest.raises(CalleeUnavailable):
            await each
    assert world.callees.backend("slow").in_use == 0
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_the_states_of_callees_are_shown_and_counted() -> None:
    world = World()
    world.backend.errors = [ConnectionResetError("gone")] * FAILURES_MAX
    for _ in range(FAILURES_MAX + 2):
        with pytest.raises(CalleeUnavailable):
            await world.send("q")
    shown = {each["name"]: each for each in world.callees.states()}
    assert shown["metadata"]["state"] is BreakerState.CLOSED
    assert (shown["backend:q"]["state"], shown["backend:q"]["refused_count"]) == (
        BreakerState.OPEN,
        2,
    )
    samples = {(f, tuple(labels)): value for f, (labels, value) in world.callees.samples()}
    assert samples[families.BREAKER_STATE, ("metadata",)] == 0
    assert samples[families.BREAKER_STATE, ("backend:q",)] == 2
    assert samples[families.BULKHEAD_REJECTED, ("backend:q",)] == 2
    assert samples[families.BULKHEAD_IN_USE, ("backend:q",)] == 0


# ── The metadata, with a real store ──────────────────────────────────────────────────────────


class Stuck:
    """A store whose writes wait for the gate."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.gate = asyncio.Event()
        self.gate.set()
        self.get = store.get
        self.list = store.list
        self.delete = store.delete
        self.grant = store.grant
        self.keep_alive = store.keep_alive
        self.revoke = store.revoke
        self.close = store.close

    async def put(self, key: str, value: bytes, *, if_version: int | None = None) -> int:
        await self.gate.wait()
        return await self._store.put(key, value, if_version=if_version)

    async def txn(self, **changes: Any) -> int:
        await self.gate.wait()
        return await self._store.txn(**changes)

    async def commit(self, txn: Txn) -> int:
        await self.gate.wait()
        return await self._store.commit(txn)

    def watch(self, prefix: str, *, from_revision: int) -> AsyncGenerator[Sequence[Change], None]:
        return self._store.watch(prefix, from_revision=from_revision)


@asynccontextmanager
async def frontend_over(folder: Path, callees: Callees) -> AsyncIterator[tuple[Rig, Stuck]]:
    """A frontend in memory, but for its metadata."""
    store = Stuck(await SqliteStore.open(folder / "metadata.sqlite3"))
    catalog = StoredCatalog(store)
    await catalog.start()
    quotas = TenantQuotas(MemoryIdentities(), catalog)
    rig = Rig()
    chance = itertools.count(1)
    rig.frontend = Frontend(
        broker=limited(rig.backend, callees, quotas),
        everything=GuardedCatalog(catalog, callees.metadata, quotas),
        subscriptions=rig.subscriptions,
        clock=rig.clock,
        config=FrontendConfig(),
        meter=MemoryMeter(),
        entropy=lambda count: next(chance).to_bytes(count, "big"),
        perf=lambda: 0.0,
        identities=MemoryIdentities(),
        quotas=quotas,
    )
    try:
        yield rig, store
    finally:
        store.gate.set()
        await catalog.stop()
        await store.close()


async def test_a_deleted_topic_is_found_by_its_id(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "metadata.sqlite3")
    stored = StoredCatalog(store)
    await stored.start()
    quotas = TenantQuotas(MemoryIdentities(), stored)
    catalog = GuardedCatalog(stored, Callees(MemoryClock()).metadata, quotas)
    made = await catalog.create(topic_of("gone"))
    assert catalog.tombstone(made.topic_id) is None
    await catalog.delete(made.account, made.region, made.name, now_ms=1)
    assert catalog.find_id(made.topic_id) is None
    tombstone = catalog.tombstone(made.topic_id)
    assert tombstone is not None
    assert (tombstone.name, tombstone.deleted_at_ms) == ("gone", 1)
    await stored.stop()
    await store.close()


async def test_metadata_that_hangs_stops_changes_and_nothing_else_and_recovers_by_itself(
    tmp_path: Path,
) -> None:
    clock = MemoryClock()
    callees = Callees(clock)
    metadata = callees.metadata
    patient = metadata._deadline_s, metadata._sweep_s
    async with frontend_over(tmp_path, callees) as (rig, store):
        queue = await json_call(rig, "CreateQueue", QueueName="known")
        url = "http://h/000000000000/known"
        assert queue.status == 200
        store.gate.clear()
        # Only while it hangs: a disk that is there may take longer.
        metadata._deadline_s, metadata._sweep_s = 0.05, 0.0125
        for number in range(FAILURES_MAX):
            late = await json_call(rig, "CreateQueue", QueueName=f"late-{number}")
            assert late.status == 503
            assert b"metadata did not reply in time" in late.body
        async with asyncio.timeout(SOON_S):
            for _ in range(20):
                refused = await json_call(rig, "CreateQueue", QueueName="more")
                assert refused.status == 503
                assert b"metadata does not reply; retry shortly." in refused.body
                sent = await json_call(rig, "SendMessage", QueueUrl=url, MessageBody="m")
                assert sent.status == 200
                received = await json_call(rig, "ReceiveMessage", QueueUrl=url)
                assert b'"Body":"m"' in received.body
        store.gate.set()
        metadata._deadline_s, metadata._sweep_s = patient
        clock.now_ms += OPEN_MS_MIN
        assert (await json_call(rig, "CreateQueue", QueueName="more")).status == 200
        assert callees.metadata.state() is BreakerState.CLOSED


async def test_a_real_broker_is_the_same_through_its_bulkheads(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic("q", partitions=2)
        callees = Callees(stage.clock)
        quotas = TenantQuotas(MemoryIdentities(), stage.catalog)
        calls = limited(stage.broker, callees, quotas)
        waiting = asyncio.create_task(calls.call(Lease(topic, LeaseRequest(wait_ms=20_000))))
        await asyncio.sleep(0)
        [appended] = await calls.call(Append(topic, 1, (message(),)))
        [delivery] = await waiting
        assert delivery.record.message.message_id == appended.message_id
        assert (await calls.call(Ends(topic, 1))).high_watermark > 0
        assert (await calls.call(Stats(topic))).in_flight == 1
        assert [each["in_use"] for each in callees.states()] == [0, 0]
