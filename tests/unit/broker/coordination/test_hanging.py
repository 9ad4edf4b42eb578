"""Transactions that nobody ends: who has them open, and how they are ended by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.broker.coordination.transaction_stage import Client, TxnRig, settled, transacting

from penstock.model.calls import Ends
from penstock.net.kafka.listener import HangUp
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.describe_producers import (
    DescribeProducersRequest,
    ProducerState,
    TopicRequest,
)
from penstock.wire.kafka.generated.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

DESCRIBE_PRODUCERS, WRITE_MARKERS = 61, 27


async def described(rig: TxnRig, name: str, *partitions: int) -> Sequence[Any]:
    asked = DescribeProducersRequest([TopicRequest(name, partitions)])
    (topic,) = (await rig.ask(DESCRIBE_PRODUCERS, 0, asked)).topics
    assert topic.name == name
    assert [each.partition_index for each in topic.partitions] == list(partitions)
    return tuple(topic.partitions)


async def producers(rig: TxnRig, name: str = "t") -> Sequence[ProducerState]:
    (partition,) = await described(rig, name, 0)
    assert (partition.error_code, partition.error_message) == (0, None)
    return tuple(partition.active_producers)


async def mark(
    rig: TxnRig,
    client: Client,
    *,
    name: str = "t",
    partitions: Sequence[int] = (0,),
    is_commit: bool = False,
    version: int = 2,
    **changes: int,
) -> list[int]:
    """Codes, by partition."""
    marker = WritableTxnMarker(
        client.producer_id,
        client.epoch,
        is_commit,
        [WritableTxnMarkerTopic(name, partitions)],
    )
    marker = msgspec.structs.replace(marker, **changes)
    found = await rig.ask(WRITE_MARKERS, version, WriteTxnMarkersRequest([marker]))
    (result,) = found.markers
    assert result.producer_id == marker.producer_id
    (topic,) = result.topics
    assert (topic.name, [each.partition_index for each in topic.partitions]) == (
        name,
        list(partitions),
    )
    return [each.error_code for each in topic.partitions]


async def hanging(rig: TxnRig) -> Client:
    """A producer with an open transaction of two records."""
    await rig.stream("t", partitions=2)
    client = Client(rig)
    await client.init()
    topic = rig.stage.catalog.find("000000000000", "us-east-1", "t")
    assert topic is not None
    assert await client.send(topic, "a", "b") == 0
    return client


# ── DescribeProducers ────────────────────────────────────────────────────────────────────────


async def test_a_producer_is_described_from_its_first_batch_to_its_marker(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        client = await hanging(rig)
        sent_at_ms = rig.clock.wall
        rig.clock.advance(5_000)
        assert await producers(rig) == (
            ProducerState(client.producer_id, client.epoch, 1, sent_at_ms, -1, 0),
        )
        assert await client.commit() == 0
        await settled(rig)
        (state,) = await producers(rig)
        assert (state.last_sequence, state.current_txn_start_offset) == (1, -1)
        assert state.coordinator_epoch >= 0


async def test_who_was_silent_for_a_day_is_not_active_unless_it_holds_a_transaction(
    tmp_path: Path,
) -> None:
    async with transacting(tmp_path) as rig:
        client = await hanging(rig)
        rig.clock.advance(25 * 3_600_000)
        (state,) = await producers(rig)
        assert state.current_txn_start_offset == 0
        assert await mark(rig, client) == [0]
        assert len(await producers(rig)) == 1
        rig.clock.advance(25 * 3_600_000)
        assert await producers(rig) == ()


async def test_partitions_that_are_not_there_are_told_apart(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        await hanging(rig)
        found = await described(rig, "t", 0, 1, 2, 0)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [each.error_code for each in found] == [0, 0, unknown, ErrorCode.INVALID_REQUEST]
        assert [len(each.active_producers) for each in found] == [1, 0, 0, 0]
        assert found[2].error_message
        assert [each.error_code for each in await described(rig, "none", 0)] == [unknown]


# ── WriteTxnMarkers ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_transaction_is_ended_by_hand(
    tmp_path: Path, is_commit: bool, version: int
) -> None:
    async with transacting(tmp_path) as rig:
        client = await hanging(rig)
        topic = rig.stage.catalog.find("000000000000", "us-east-1", "t")
        assert topic is not None
        assert await rig.read(topic) == []
        assert await mark(rig, client, is_commit=is_commit, version=version) == [0]
        assert await rig.read(topic) == (["a", "b"] if is_commit else [])
        (state,) = await producers(rig)
        assert state.current_txn_start_offset == -1
        ends = await rig.stage.broker.call(Ends(topic, 0))
        assert ends.last_stable_offset == ends.high_watermark == 3
        assert await mark(rig, client, is_commit=is_commit, version=version) == [0], "again"


async def test_a_marker_from_the_past_is_refused(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        client = await hanging(rig)
        assert await mark(rig, client, coordinator_epoch=4) == [0]
        fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert await mark(rig, client, coordinator_epoch=3) == [fenced]
        newer = client.epoch + 1
        assert await mark(rig, client, coordinator_epoch=4, producer_epoch=newer) == [0]
        assert await mark(rig, client, coordinator_epoch=4) == [ErrorCode.INVALID_PRODUCER_EPOCH]


async def test_with_raised_epochs_a_marker_of_the_epoch_in_use_comes_too_late(
    tmp_path: Path,
) -> None:
    async with transacting(tmp_path) as rig:
        client = await hanging(rig)
        late = await mark(rig, client, transaction_version=2)
        assert late == [ErrorCode.INVALID_PRODUCER_EPOCH]
        (state,) = await producers(rig)
        assert state.current_txn_start_offset == 0
        raised = client.epoch + 1
        assert await mark(rig, client, transaction_version=2, producer_epoch=raised) == [0]


async def test_each_partition_has_its_own_answer(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        client = await hanging(rig)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await mark(rig, client, partitions=(7, 0, 1, -1)) == [unknown, 0, 0, unknown]
        assert await mark(rig, client, name="none") == [unknown]
        await rig.stage.topic("queue")
        for name in ("queue", "__transactions"):
            assert await mark(rig, client, name=name) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


async def test_no_marker_is_written_for_nobody(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        client = await hanging(rig)
        mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await mark(rig, client, producer_id=-1) == [mapping]
        assert await mark(rig, client, producer_epoch=-1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        (state,) = await producers(rig)
        assert state.current_txn_start_offset == 0


async def test_absurdly_many_markers_end_the_connection(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        client = await hanging(rig)
        with pytest.raises(HangUp, match="partition_indexes has 10001"):
            await mark(rig, client, partitions=[0] * 10_001)
