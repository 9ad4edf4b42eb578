"""FIFO streams: deduplicated like FIFO queues, kept and read like streams."""

from pathlib import Path

import pytest
from tests.unit.broker.queues.test_ordered_shares import acquire, ordered
from tests.unit.broker.queues.test_shares import share, values
from tests.unit.broker.stage import HandClock, message, on_stage

from penstock.model.calls import Append, Fetch, Stats
from penstock.model.errors import InvalidRequest
from penstock.model.limits import DEDUP_WINDOW_MS
from penstock.model.topic import Kind
from penstock.record.record import iter_records


@pytest.mark.parametrize("is_crash", [False, True])
async def test_a_message_that_is_sent_again_is_stored_once(
    tmp_path: Path, *, is_crash: bool
) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock, is_crash=is_crash) as stage:
        topic = await stage.topic("sns.t.fifo", kind=Kind.FIFO_STREAM)
        assert topic.is_fifo
        assert not topic.is_queue
        sent = [message(body, group="g", dedup_id=body) for body in ("a", "b")]
        first = await stage.broker.call(Append(topic, 0, sent))
        assert [each.is_duplicate for each in first] == [False, False]
    async with on_stage(tmp_path, clock) as stage:
        [again] = await stage.broker.call(Append(topic, 0, [message("x", dedup_id="a")]))
        assert (again.is_duplicate, again.offset) == (True, first[0].offset)
        assert again.message_id == first[0].message_id
        clock.advance(DEDUP_WINDOW_MS)
        [later] = await stage.broker.call(Append(topic, 0, [message("a", dedup_id="a")]))
        assert not later.is_duplicate
        found = await stage.broker.call(Fetch(topic, 0, 0, 1 << 20, True))
        data = b"".join(map(bytes, found.buffers))  # type: ignore[arg-type]
        assert next(iter(iter_records(data))).value == b"a"
        assert found.record_count == 3
        assert (await stage.broker.call(Stats(topic))).in_flight == 0


async def test_it_is_read_by_ordered_shares_only(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic("sns.t.fifo", kind=Kind.FIFO_STREAM)
        with pytest.raises(InvalidRequest, match="only ordered shares"):
            await share(stage, topic, "g")
        reader = await ordered(stage, topic)
        sent = [message(f"{at}", group="ab"[at % 2], dedup_id=f"{at}") for at in range(4)]
        await stage.broker.call(Append(topic, 0, sent))
        assert values(await acquire(stage, reader, group_max=1)) == ["0", "1"]
        assert (await acquire(stage, reader)).picks == []
