"""Fetch: what is returned of many partitions, and when it is waited for."""

import asyncio
from collections.abc import Awaitable

import pytest
from tests.unit.frontend_kafka.rig import MemoryPartition, Rig, batch

from penstock.model.file_slice import in_memory
from penstock.model.limits import KAFKA_PARTITIONS_MAX
from penstock.model.topic import Topic
from penstock.net.kafka.listener import HangUp
from penstock.record.batch import ATTR_CONTROL, HEADER_BYTES
from penstock.wire.kafka.apis import FETCH
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from penstock.wire.kafka.primitives import ZERO_UUID

LONG_MS = 30_000  # a wait that a test cannot sit out


def request(
    name: str,
    *partitions: FetchPartition,
    topic_id: bytes = ZERO_UUID,
    wait_ms: int = 0,
    bytes_min: int = 1,
    bytes_max: int = 2**31 - 1,
    isolation_level: int = 0,
    session_id: int = 0,
) -> FetchRequest:
    return FetchRequest(
        wait_ms,
        bytes_min,
        [FetchTopic(name, topic_id, partitions)],
        bytes_max=bytes_max,
        isolation_level=isolation_level,
        session_id=session_id,
    )


def want(index: int = 0, offset: int = 0, bytes_max: int = 1_048_576) -> FetchPartition:
    return FetchPartition(index, offset, bytes_max)


async def parts(rig: Rig, asked: FetchRequest, version: int = 12) -> list[FetchPartitionResponse]:
    answer: FetchResponse = await rig.ask(FETCH, version, asked)
    assert (answer.error_code, answer.session_id) == (0, 0)
    return [one for topic in answer.topics for one in topic.partitions]


def held(one: FetchPartitionResponse) -> bytes:
    return b"".join(in_memory(one.records))


async def parked(rig: Rig, partition: MemoryPartition, asking: Awaitable[object]) -> None:
    """Until the fetch has looked twice and waits."""
    while not len(rig.context.parked):
        await asyncio.sleep(0)
    assert partition.listeners


def nothing_listens(rig: Rig, topic: Topic) -> bool:
    return not any(rig.partition(topic, index).listeners for index in range(topic.partition_count))


@pytest.mark.parametrize("version", range(4, 13))
async def test_batches_come_as_they_are_in_the_log(version: int) -> None:
    rig = Rig()
    topic = await rig.topic("t", partitions=2)
    partition = rig.partition(topic, 1)
    partition.append(batch(b"a", b"b"))
    partition.append(batch(b"c"))
    [empty, full] = await parts(rig, request("t", want(0), want(1, offset=1)), version)
    assert held(empty) == b""
    assert held(full) == b"".join(partition.batches)
    assert (full.high_watermark, full.last_stable_offset) == (3, 3)
    assert rig.meter.received_count == 3


async def test_the_batches_of_an_answer_are_not_copied() -> None:
    rig = Rig()
    topic = await rig.topic("t")
    partition = rig.partition(topic)
    partition.append(batch(b"a"))
    from penstock.wire.kafka.fetch import encode_fetch_request

    buffers = await rig.raw(FETCH, 12, encode_fetch_request(request("t", want()), 12))
    assert buffers is not None
    assert any(buffer is partition.batches[0] for buffer in buffers)


async def test_from_version_13_on_a_topic_is_its_id() -> None:
    rig = Rig()
    topic = await rig.topic("t")
    rig.partition(topic).append(batch(b"a"))
    topic_id = bytes.fromhex(topic.topic_id)
    [one] = await parts(rig, request("", want(), topic_id=topic_id), 18)
    assert held(one)
    [gone] = await parts(rig, request("", want(), topic_id=bytes(15) + b"\xff"), 18)
    assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (want(7), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (want(-1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (want(0, offset=9), ErrorCode.OFFSET_OUT_OF_RANGE),
        (want(0, offset=-1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (FetchPartition(0, 0, 100, current_leader_epoch=1), ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_an_error_of_one_partition_answers_at_once(
    asked: FetchPartition, code: ErrorCode
) -> None:
    rig = Rig()
    topic = await rig.topic("t", partitions=2)
    [good, bad] = await parts(rig, request("t", want(1), asked, wait_ms=LONG_MS))
    assert good.error_code == 0
    assert (bad.error_code, bad.high_watermark, held(bad)) == (code, -1, b"")
    assert nothing_listens(rig, topic)


async def test_control_batches_are_handed_out_and_not_counted() -> None:
    rig = Rig()
    topic = await rig.topic("t")
    rig.partition(topic).append(batch(b"event", attributes=ATTR_CONTROL))
    rig.partition(topic).append(batch(b"a"))
    [one] = await parts(rig, request("t", want()))
    assert held(one) == b"".join(rig.partition(topic).batches)
    assert rig.meter.received_count == 1


# ── Bounds ───────────────────────────────────────────────────────────────────────────────────


async def test_the_first_batch_comes_whole_however_small_the_bounds() -> None:
    rig = Rig()
    topic = await rig.topic("t", partitions=3)
    for index in (1, 2):
        rig.partition(topic, index).append(batch(bytes(500)))
    asked = request("t", *[want(index, bytes_max=1) for index in range(3)], bytes_max=1)
    first, second, third = await parts(rig, asked)
    assert [bool(held(one)) for one in (first, second, third)] == [False, True, False]
    assert (third.error_code, third.high_watermark) == (0, 1)


async def test_later_partitions_get_what_still_fits() -> None:
    rig = Rig()
    topic = await rig.topic("t", partitions=2)
    for index in (0, 1):
        for _ in range(4):
            rig.partition(topic, index).append(batch(bytes(500)))
    size = len(rig.partition(topic).batches[0])
    asked = request(
        "t", want(0, bytes_max=2 * size), want(1, bytes_max=10 * size), bytes_max=3 * size + 1
    )
    assert [len(held(one)) for one in await parts(rig, asked)] == [2 * size, size]


async def test_a_batch_larger_than_its_partitions_bound_is_not_starved_by_another_partition() -> (
    None
):
    rig = Rig()
    topic = await rig.topic("t", partitions=2)
    rig.partition(topic, 0).append(batch(b"a"))
    rig.partition(topic, 1).append(batch(bytes(500)))
    [_, one] = await parts(rig, request("t", want(0), want(1, bytes_max=100)))
    assert held(one)


# ── Waiting ──────────────────────────────────────────────────────────────────────────────────


async def test_a_fetch_waits_until_one_of_its_partitions_advances() -> None:
    rig = Rig()
    topic = await rig.topic("t", partitions=3)
    wants = [want(index) for index in range(3)]
    asking = asyncio.create_task(parts(rig, request("t", *wants, wait_ms=LONG_MS)))
    await parked(rig, rig.partition(topic, 0), asking)
    looks = rig.partition(topic, 0).looks
    rig.partition(topic, 2).append(batch(b"a"))
    found = await asking
    assert [bool(held(one)) for one in found] == [False, False, True]
    assert rig.partition(topic, 0).looks == looks, "only what advanced is looked at again"
    assert nothing_listens(rig, topic)


async def test_a_fetch_gathers_until_there_is_as_much_as_it_asked_for() -> None:
    rig = Rig()
    topic = await rig.topic("t", partitions=2)
    size = len(batch(bytes(500)))
    asked = request("t", want(0), want(1), wait_ms=LONG_MS, bytes_min=3 * size)
    asking = asyncio.create_task(parts(rig, asked))
    await parked(rig, rig.partition(topic, 0), asking)
    for index in (0, 1, 0):
        assert not asking.done()
        rig.partition(topic, index).append(batch(bytes(500)))
        for _ in range(10):
            await asyncio.sleep(0)
    found = await asking
    assert [len(held(one)) for one in found] == [2 * size, size]
    assert held(found[0]) == b"".join(rig.partition(topic, 0).batches), "none twice, none missing"
    assert found[0].high_watermark == 2


async def test_a_fetch_that_wants_more_than_it_may_get_does_not_wait_for_it() -> None:
    rig = Rig()
    topic = await rig.topic("t")
    rig.partition(topic).append(batch(bytes(500)))
    asked = request("t", want(), wait_ms=LONG_MS, bytes_min=1_000_000, bytes_max=100)
    [one] = await parts(rig, asked)
    assert held(one)


async def test_reads_that_end_with_a_segment_are_gone_on_with() -> None:
    rig = Rig()
    topic = await rig.topic("t")
    partition = rig.partition(topic)
    partition.read_batches_max = 1
    for _ in range(5):
        partition.append(batch(bytes(500)))
    size = len(partition.batches[0])
    asked = request("t", want(), wait_ms=LONG_MS, bytes_min=5 * size)
    [one] = await parts(rig, asked)
    assert held(one) == b"".join(partition.batches)


async def test_a_wait_that_brings_nothing_is_answered_empty() -> None:
    rig = Rig()
    topic = await rig.topic("t")
    [one] = await parts(rig, request("t", want(), wait_ms=5))
    assert (one.error_code, held(one), one.high_watermark) == (0, b"", 0)
    assert nothing_listens(rig, topic)
    assert len(rig.context.parked) == 0


async def test_what_there_is_when_the_time_is_up_is_answered() -> None:
    rig = Rig()
    topic = await rig.topic("t")
    rig.partition(topic).append(batch(b"a"))
    [one] = await parts(rig, request("t", want(), wait_ms=5, bytes_min=1_000_000))
    assert len(held(one)) > HEADER_BYTES


async def test_without_partitions_there_is_nothing_to_wait_for() -> None:
    assert await parts(Rig(), request("t", wait_ms=LONG_MS)) == []


async def test_a_draining_node_answers_the_waiting_and_lets_nobody_wait() -> None:
    rig = Rig()
    topic = await rig.topic("t")
    asked = request("t", want(), wait_ms=LONG_MS)
    asking = asyncio.create_task(parts(rig, asked))
    await parked(rig, rig.partition(topic), asking)
    rig.frontend.drain()
    assert [held(one) for one in await asking] == [b""]
    assert [held(one) for one in await parts(rig, asked)] == [b""]


async def test_a_client_that_leaves_while_waiting_leaves_nothing_behind() -> None:
    rig = Rig()
    topic = await rig.topic("t")
    asking = asyncio.create_task(parts(rig, request("t", want(), wait_ms=LONG_MS)))
    await parked(rig, rig.partition(topic), asking)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert nothing_listens(rig, topic)
    assert len(rig.context.parked) == 0


# ── Transactions and bounds ────────────────────────────────────────────────────────────────


async def test_committed_readers_stop_at_the_last_stable_offset() -> None:
    rig = Rig()
    topic = await rig.topic("t")
    partition = rig.partition(topic)
    partition.append(batch(b"a"))
    partition.append(batch(b"b"))
    partition.stable_offset = 1
    partition.aborted = [(7, 0)]
    [all_of_it] = await parts(rig, request("t", want()))
    [committed] = await parts(rig, request("t", want(), isolation_level=1))
    assert all_of_it.aborted is None
    assert held(committed) == partition.batches[0]
    assert committed.aborted is not None
    assert [(gone.producer_id, gone.first_offset) for gone in committed.aborted] == [(7, 0)]
    assert (committed.high_watermark, committed.last_stable_offset) == (2, 1)


async def test_a_fetch_of_too_many_partitions_is_rejected() -> None:
    wants = [want()] * (KAFKA_PARTITIONS_MAX + 1)
    reply = await Rig().ask(FETCH, 12, request("t", *wants))
    assert reply.error_code == ErrorCode.INVALID_REQUEST
    with pytest.raises(HangUp, match="partitions"):  # a version without a field for it
        await Rig().ask(FETCH, 6, request("t", *wants))
