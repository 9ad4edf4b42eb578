"""What an answer held is free once it is written: without waiting for the cycle collector, which
counts objects and would let gigabytes pile up."""

import gc
import sys

import pytest
from tests.unit.frontend_kafka.rig import Rig, batch

from penstock.wire.kafka.apis import FETCH
from penstock.wire.kafka.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    encode_fetch_request,
)
from penstock.wire.kafka.primitives import ZERO_UUID

NO_SESSION, NEW_SESSION = -1, 0


@pytest.mark.parametrize("session_epoch", [NO_SESSION, NEW_SESSION])
async def test_nothing_holds_on_to_an_answer_that_is_written(session_epoch: int) -> None:
    rig = Rig()
    topic = await rig.topic("t", partitions=2)
    rig.partition(topic, 1).append(batch(b"a"))
    [data] = rig.partition(topic, 1).batches
    asked = FetchRequest(
        0,
        1,
        [FetchTopic("t", ZERO_UUID, [FetchPartition(index, 0, 1_000) for index in range(2)])],
        session_epoch=session_epoch,
    )
    body = encode_fetch_request(asked, 12)
    gc.disable()
    try:
        before = sys.getrefcount(data)
        for _ in range(3):
            buffers = await rig.raw(FETCH, 12, body)
            assert buffers is not None
            assert any(buffer is data for buffer in buffers)
            del buffers
        assert sys.getrefcount(data) == before
    finally:
        gc.enable()
