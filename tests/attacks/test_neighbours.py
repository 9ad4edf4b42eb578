"""One tenant in trouble, by accident or on purpose, and its neighbours: an append that fails, a
partition that hangs, on one node and on three. Neighbours are served throughout."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.attacks.frames import Wire
from tests.attacks.kit import EVERYTHING, Operator, sqs_as
from tests.harness.server import Server
from tests.unit.broker.partition.test_stream import batch
from tests.unit.broker.stage import Stage, bodies, claim, message, on_stage
from tests.unit.calls.routing_kit import on_nodes
from tests.unit.frontend.limits.test_quotas import limited
from tests.unit.frontend.memory import MemoryIdentities

from penstock.broker.partition.partition import Partition
from penstock.calls.callees import Callees
from penstock.calls.routing.leaders import Leaders
from penstock.calls.routing.router import Router
from penstock.cursor.leases.parts import dead_letter
from penstock.flow.breaker import BreakerState
from penstock.frontend.limits.quotas import TenantQuotas
from penstock.log.storage.files import Disk
from penstock.model.calls import Ack, Append, AppendBatches, Lease, Stats
from penstock.model.errors import Overloaded
from penstock.model.limits import ATTEMPTS_MAX
from penstock.model.message import Message, Record
from penstock.model.ports import LeaseRequest
from penstock.model.topic import Fsync, Topic
from penstock.record.batch import encode_batch
from penstock.record.record import encode_record
from penstock.telemetry.clock import SystemClock
from penstock.wire.kafka.produce import ProducePartition, ProduceTopic

AT_ONCE_SECONDS = 1.0
TEN = LeaseRequest(count=10)
TOO_LARGE = 2**70  # fits no field of a record
ATTACKER, VICTIM = "111111111111", "222222222222"


async def outcomes(*calls: Awaitable[Any]) -> list[Any]:
    """What each of them returns or raises, all within a second."""
    async with asyncio.timeout(AT_ONCE_SECONDS):
        return await asyncio.gather(*calls, return_exceptions=True)


def partition_of(stage: Stage, topic: Topic, index: int) -> Partition:
    queue = stage.broker.partitions.find(topic)
    assert queue is not None
    return queue.partitions[index]


# ── An append that fails ─────────────────────────────────────────────────────────────────────


def appending(stage: Stage) -> Callable[[Topic, int, Sequence[Message]], Awaitable[Any]]:
    async def append(topic: Topic, partition: int, messages: Sequence[Message]) -> Any:
        return await stage.broker.call(Append(topic, partition, messages))

    return append


@pytest.mark.parametrize("fsync", list(Fsync))
async def test_a_message_that_cannot_be_encoded_fails_its_own_batch_only(
    tmp_path: Path, fsync: Fsync, caplog: pytest.LogCaptureFixture
) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic("spoilt", partitions=2, fsync=fsync)
        append = appending(stage)
        await append(topic, 0, [message("before")])
        (leased,) = await stage.broker.call(Lease(topic, TEN))
        done = await outcomes(
            append(topic, 0, [message("shares the batch")]),
            append(topic, 0, [message("spoilt", attempts=TOO_LARGE)]),
            stage.broker.call(Ack(topic, 0, [claim(leased)])),  # in the same turn: another batch
            append(topic, 1, [message("other partition")]),
        )
        assert [isinstance(one, Overloaded) for one in done] == [True, True, False, False], done
        assert "encoded" in str(done[0])
        (line,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
        assert (line.topic, line.partition) == ("spoilt", 0)  # type: ignore[attr-defined]
        # The partition goes on, with nothing of the failed batch in it.
        (appended,) = await append(topic, 0, [message("after")])
        assert appended.offset == partition_of(stage, topic, 0).log.end_offset - 1
        found = [
            *await stage.broker.call(Lease(topic, TEN)),
            *await stage.broker.call(Lease(topic, TEN)),
        ]
        assert sorted(bodies(found)) == ["after", "other partition"]
    async with on_stage(tmp_path, stage.clock) as stage:
        assert (await stage.broker.call(Stats(topic))).in_flight == 2, "the same after a restart"


async def test_a_duplicate_of_a_message_that_was_not_written_is_not_confirmed(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic("q.fifo", fifo=True)
        append = appending(stage)
        spoilt = message("spoilt", group="g", dedup_id="d", attempts=TOO_LARGE)
        repeated = message("spoilt", group="g", dedup_id="d")
        first, second = await outcomes(append(topic, 0, [spoilt]), append(topic, 0, [repeated]))
        assert isinstance(first, Overloaded)
        assert isinstance(second, Overloaded), "the first message of this id is not in the log"
        (appended,) = await append(topic, 0, [repeated])
        assert not appended.is_duplicate


@pytest.mark.parametrize(
    ("where", "fsync"),
    [
        *(("log.append", fsync) for fsync in Fsync),
        *(("leases.appended", fsync) for fsync in Fsync),
        ("log.begin_sync", Fsync.ALWAYS),
        ("log.finish_sync", Fsync.ALWAYS),
    ],
)
async def test_an_unexpected_error_in_an_append_takes_its_partition_out_of_service(
    tmp_path: Path,
    fsync: Fsync,
    where: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic("broken", partitions=2, fsync=fsync)
        append = appending(stage)
        await append(topic, 0, [message("before")])
        (leased,) = await stage.broker.call(Lease(topic, TEN))
        broken = partition_of(stage, topic, 0)
        with monkeypatch.context() as patched:
            part, _, name = where.partition(".")
            patched.setattr(getattr(broken, part), name, explode)
            done = await outcomes(
                append(topic, 0, [message("lost")]),
                stage.broker.call(Ack(topic, 0, [claim(leased)])),
                append(topic, 1, [message("other partition")]),
            )
        assert [isinstance(one, Overloaded) for one in done] == [True, True, False], done
        assert "out of service" in str(done[0])
        lines = [r for r in caplog.records if r.getMessage() == "partition is out of service"]
        assert {(line.topic, line.partition) for line in lines} == {("broken", 0)}  # type: ignore[attr-defined]
        # Nothing else is written behind it, and nobody waits.
        refused = await outcomes(
            append(topic, 0, [message("late")]),
            stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("b")])),
            append(topic, 1, [message("other partition")]),
        )
        assert [isinstance(one, Overloaded) for one in refused] == [True, True, False], refused
        assert [each for each in stage.broker.partitions.damages() if "out of service" in each[1]]
    # Opened again, the log has whatever was answered, and the partition takes messages.
    async with on_stage(tmp_path, stage.clock) as stage:
        stage.clock.advance(60_000)
        found = [
            *await stage.broker.call(Lease(topic, TEN)),
            *await stage.broker.call(Lease(topic, TEN)),
        ]
        assert bodies(found).count("other partition") == 2
        assert ("before" in bodies(found)) or "sync" in where, "the ack was not written"
        await stage.broker.call(Append(topic, 0, [message("in service again")]))


@pytest.mark.parametrize("lost", ["message", "event"])
async def test_cursors_that_cannot_be_read_back_take_the_partition_out_of_service(
    tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic("spoilt", fsync=Fsync.NEVER)
        append = appending(stage)
        await append(topic, 0, [message("before")])
        journal = partition_of(stage, topic, 0).journal
        monkeypatch.setattr(journal, "_on_lost", explode)
        if lost == "message":
            failing: Awaitable[Any] = append(topic, 0, [message(attempts=TOO_LARGE)])
        else:
            failing = journal.add_event((1, cast(bytes, "not bytes"))).committed.wait()
        (failed,) = await outcomes(failing)
        assert isinstance(failed, Overloaded)
        (refused,) = await outcomes(append(topic, 0, [message("late")]))
        assert "out of service" in str(refused)


async def test_a_batch_that_raises_an_unexpected_error_takes_its_partition_out_of_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic("stream", partitions=2)
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch("before")]))
        broken = partition_of(stage, topic, 0)
        monkeypatch.setattr(broken.leases, "batch_appended", explode)
        calls = (
            stage.broker.call(AppendBatches(topic, index, acks=-1, batches=[batch("b")]))
            for index in (0, 0, 1)
        )
        done = await outcomes(*calls)
        assert [isinstance(one, Overloaded) for one in done] == [True, True, False], done


def explode(*_args: object, **_named: object) -> None:
    raise RuntimeError("nobody expected this")


def test_the_count_of_attempts_of_a_dead_letter_stops_at_its_bound() -> None:
    record = Record(0, 0, message(attempts=2**64 - 1))
    letter = dead_letter(record, attempts=1, source_arn="arn", origin="o", is_fifo=False)
    assert letter.attempts == ATTEMPTS_MAX


# ── The attack ───────────────────────────────────────────────────────────────────────────────


def test_messages_that_claim_a_huge_count_do_not_hold_up_anybody(
    locked: Server, operator: Operator, root: Any
) -> None:
    """A producer writes the system header by itself and claims 2^64 − 1 attempts; the receive that
    makes a dead letter of it must neither hang nor hold up the neighbours."""
    _, credentials = operator.user(EVERYTHING, tenant=operator.tenant())
    attacker = sqs_as(locked, credentials)
    urls = [_with_dead_letters(attacker, f"src{number}") for number in range(8)]
    with Wire(locked) as wire:
        wire.log_in(credentials.access_key, credentials.secret_key)
        for number in range(8):
            _produce(wire, f"src{number}", _spoilt_batch())
    queue = root.create_queue(QueueName=f"neighbour-{secrets.token_hex(4)}")["QueueUrl"]
    is_over = threading.Event()

    def receive(url: str) -> float:
        longest = 0.0
        for _ in range(6):
            begun = time.monotonic()
            attacker.receive_message(QueueUrl=url, VisibilityTimeout=0)
            longest = max(longest, time.monotonic() - begun)
        return longest

    def neighbour() -> int:
        sent = 0
        while not is_over.is_set() or sent < 20:
            root.send_message(QueueUrl=queue, MessageBody="m")  # raises unless it succeeds
            sent += 1
        return sent

    with ThreadPoolExecutor(9) as threads:
        sending = threads.submit(neighbour)
        longest = max(threads.map(receive, urls))
        is_over.set()
        assert sending.result() >= 20
    assert longest < 5.0, "no receive waits for the deadline of a call (15 s)"
    for url in (queue, *urls):
        (root if url == queue else attacker).delete_queue(QueueUrl=url)
    attacker.close()


def _with_dead_letters(client: Any, name: str) -> str:
    dead = client.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    names = ["QueueArn"]
    arn = client.get_queue_attributes(QueueUrl=dead, AttributeNames=names)["Attributes"]["QueueArn"]
    rule = msgspec.json.encode({"deadLetterTargetArn": arn, "maxReceiveCount": 1}).decode()
    return str(client.create_queue(QueueName=name, Attributes={"RedrivePolicy": rule})["QueueUrl"])


def _spoilt_batch() -> bytes:
    system = [secrets.token_bytes(16), "A:ceo", None, None, None, 2**64 - 1]
    headers = [(b"penstock", msgspec.msgpack.encode(system))]
    record = encode_record(
        offset_delta=0, timestamp_delta=0, key=None, value=b"spoilt", headers=headers
    )
    now_ms = time.time_ns() // 1_000_000
    return encode_batch(
        [record], base_offset=0, leader_epoch=-1, base_timestamp=now_ms, max_timestamp=now_ms
    )


def _produce(wire: Wire, topic: str, data: bytes) -> None:
    topics = [ProduceTopic(topic, bytes(16), [ProducePartition(0, data)])]
    wire.ask("Produce", 9, transactional_id=None, acks=-1, timeout_ms=5_000, topics=topics)


# ── A partition that hangs ───────────────────────────────────────────────────────────────────


class HangingDisk(Disk):
    """Syncs return when the gate opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def sync_data(self, fd: int) -> None:
        self.gate.wait(30)
        super().sync_data(fd)


@contextmanager
def hanging(partition: Partition) -> Iterator[None]:
    disk = HangingDisk()
    partition.log.disk = disk
    try:
        yield
    finally:
        disk.gate.set()
        partition.log.disk = Disk()


def of_tenant(topic: Topic, account: str) -> Topic:
    return msgspec.structs.replace(topic, account=account)


async def test_twelve_late_calls_of_one_tenant_leave_the_node_to_the_others(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path) as stage:
        callees = Callees(SystemClock(), backend_deadline_ms=2_000)
        quotas = TenantQuotas(MemoryIdentities(), stage.catalog)
        calls = limited(stage.broker, callees, quotas)
        own = await stage.topic("attacker", fsync=Fsync.ALWAYS)
        others = await stage.topic("victim", fsync=Fsync.ALWAYS)
        own, others = of_tenant(own, ATTACKER), of_tenant(others, VICTIM)
        await stage.broker.call(Append(own, 0, [message()]))
        with hanging(partition_of(stage, own, 0)):
            late = [asyncio.create_task(calls.call(Append(own, 0, [message()]))) for _ in range(12)]
            while not all(one.done() for one in late):
                await calls.call(Append(others, 0, [message()]))  # raises unless it succeeds
            assert all(isinstance(one.exception(), Overloaded) for one in late)
            for _ in range(20):
                await calls.call(Append(others, 0, [message()]))
            assert callees.backend("n").state() is BreakerState.CLOSED
            assert callees.backend("n").breaker.opened_count == 0
            (refused,) = await outcomes(calls.call(Append(own, 0, [message()])))
            assert "does not reply for this partition" in str(refused)


async def test_a_partition_that_hangs_on_another_node_leaves_that_node_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.model.call_times.LOOK_SECONDS_MAX", 0.05)
    async with on_nodes(tmp_path, 1, 2, 3) as cluster:
        own = of_tenant(await cluster.topic("attacker", led_by=(2, 3)), ATTACKER)
        others = of_tenant(await cluster.topic("victim", led_by=(2,)), VICTIM)
        callees = Callees(SystemClock())
        remotes = {number: cluster.remote(number) for number in (2, 3)}
        routed = Router(
            Leaders(
                cluster.nodes[1].owned,
                own_node=1,
                routes=cluster.truth,
                remote=lambda number: remotes[number],
                bulkhead=lambda number: callees.remote(f"node {number}"),
                retry_seconds_max=0.2,
            ),
            cluster.nodes[1].catalog.find_arn,
        )
        stuck = asyncio.Event()
        served = cluster.nodes[2]

        async def lease(call: Lease) -> Sequence[Any]:
            if call.topic.topic_id == own.topic_id:
                await stuck.wait()
            return await served.broker.call(call)

        served.owned.instead[Lease] = lease
        node = callees.remote("node 2")
        for _ in range(2):
            late = (routed.call(Lease(own, TEN)) for _ in range(12))
            await asyncio.gather(*late, return_exceptions=True)
            for _ in range(10):
                await routed.call(Append(others, 0, [message()]))  # raises unless it succeeds
        assert node.breaker.opened_count == 0
        assert len(await routed.call(Lease(others, TEN))) == 10
        stuck.set()
        await routed.close()
