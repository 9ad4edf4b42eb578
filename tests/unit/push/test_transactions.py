"""Subscriptions get the records of committed transactions only."""

from pathlib import Path

import pytest
from tests.harness.endpoint import Endpoint
from tests.unit.broker.stage import Stage, message
from tests.unit.push.stage import on_push
from tests.unit.push.test_fan_out import RAW, fanning
from tests.unit.push.test_slow_queues import all_bodies

from penstock.model.calls import Append, AppendBatches, AppendMarker
from penstock.model.ports import Marker
from penstock.model.topic import Topic
from penstock.record.batch import ATTR_TRANSACTIONAL, encode_batch
from penstock.record.record import encode_record

KEPT = ["plain", "yes", "between", "yes again", "last"]


async def write(stage: Stage, topic: Topic) -> None:
    """Write two transactions that overlap, one of them aborted, and one that is committed later by
    the producer whose first one was aborted."""

    async def send(producer_id: int, text: str, *, sequence: int = 0) -> None:
        batch = encode_batch(
            [encode_record(offset_delta=0, timestamp_delta=0, key=b"k", value=text.encode())],
            base_offset=0,
            leader_epoch=0,
            base_timestamp=0,
            max_timestamp=0,
            attributes=ATTR_TRANSACTIONAL,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch]))

    async def end(producer_id: int, *, is_commit: bool) -> None:
        marker = Marker(producer_id, 0, is_commit=is_commit)
        await stage.broker.call(AppendMarker(topic, 0, marker))

    await stage.broker.call(Append(topic, 0, (message("plain", group="k"),)))
    await send(7, "no")
    await send(8, "yes")
    await send(7, "no again", sequence=1)
    await stage.broker.call(Append(topic, 0, (message("between", group="k"),)))
    await end(7, is_commit=False)
    await send(7, "yes again", sequence=2)
    await end(8, is_commit=True)
    await end(7, is_commit=True)
    await stage.broker.call(Append(topic, 0, (message("last", group="k"),)))


async def test_queues_get_no_copies_of_aborted_messages(tmp_path: Path) -> None:
    async with fanning(tmp_path) as fan:
        topic, queue = await fan.sns(), await fan.stage.topic("q")
        await fan.subscribe(topic, "q", **RAW)
        await write(fan.stage, topic)
        assert sorted(await all_bodies(fan, queue, len(KEPT))) == sorted(KEPT)


@pytest.mark.parametrize("ordered", ["none", "group"])
async def test_endpoints_get_no_aborted_messages(tmp_path: Path, ordered: str) -> None:
    with Endpoint() as endpoint:
        async with on_push(tmp_path, endpoint) as push:
            topic = await push.sns_topic()
            one = await push.subscribe(topic, "/tx", webhook={"ordered": ordered})
            await write(push.stage, topic)
            await push.seen(len(KEPT))
            await push.finished(topic, one)
            sent = [each.body for each in push.ledger()]
            assert sorted(sent) == sorted(KEPT)
            if ordered == "group":
                assert sent == KEPT
