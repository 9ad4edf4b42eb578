"""What becomes of requests that are under way when another node begins to lead."""

import asyncio
from pathlib import Path

import pytest
from tests.unit.broker.replicas.stage import cluster, settles, until

from penstock.model.calls import Lease
from penstock.model.errors import LeaderMoved, NotLeader
from penstock.model.ports import LeaseRequest


async def test_a_request_is_answered_when_the_next_leader_has_committed_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        on.nodes[3].is_cut = True
        await until(lambda: len(on.nodes[1].replica(key)._waiting_fetches) <= 1)
        under_way = asyncio.ensure_future(on.sent(1, topic, "kept"))
        await until(lambda: on.nodes[2].replica(key).log.end_offset == 1)
        assert not under_way.done()  # the third has not got it, and counts
        await on.elect(key, 2)
        on.nodes[3].is_cut = False
        assert await settles(under_way) == [0]
        found = await on.nodes[2].broker.call(Lease(topic, LeaseRequest(count=10, wait_ms=5_000)))
        assert [one.record.message.body for one in found] == [b"kept"]


async def test_a_request_that_the_next_leader_has_not_is_answered_as_unknown(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        on.nodes[2].is_cut = on.nodes[3].is_cut = True
        await until(lambda: not on.nodes[1].replica(key)._waiting_fetches)
        under_way = asyncio.ensure_future(on.sent(1, topic, "cut off"))
        await until(lambda: on.nodes[1].replica(key).log.end_offset == 1)
        on.nodes[2].is_cut = on.nodes[3].is_cut = False
        # Without a turn of the loop in between: no follower has asked yet.
        await on.elect(key, 2)
        outcome = (await asyncio.gather(settles(under_way), return_exceptions=True))[0]
        await on.alike(key)
        second = on.nodes[2].replica(key).replica
        await until(lambda: second.high_watermark == second.end_offset)
        found = await on.nodes[2].broker.call(Lease(topic, LeaseRequest(count=10)))
        bodies = [one.record.message.body for one in found]
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, LeaderMoved), "whether it was written is not known"
            assert bodies == []
        else:
            # A follower was quicker than the election; then it must be there.
            assert outcome == [0]
            assert bodies == [b"cut off"]


async def test_a_node_that_leaves_sends_requests_to_the_next_leader(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        await settles(on.sent(1, topic, "one"))
        leaving = asyncio.ensure_future(on.nodes[1].replicators.leave())
        await until(lambda: on.nodes[2].view.nodes[1].is_leaving)
        with pytest.raises(NotLeader):
            await settles(on.sent(1, topic, "two"))
        await on.elect(key, 2)
        await settles(leaving)
        await settles(on.sent(2, topic, "two"))


async def test_a_follower_has_read_what_is_committed_before_it_leads(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        for number in range(50):
            await settles(on.sent(1, topic, f"message {number}"))
        second = on.nodes[2].replica(key)
        followed = second.follower_log
        await until(lambda: followed.replay is not None and followed.replay.offset >= 49)
        taken = await on.nodes[1].broker.call(Lease(topic, LeaseRequest(count=10, lease_ms=60_000)))
        assert len(taken) == 10
        await on.elect(key, 2)
        found = await on.nodes[2].broker.call(Lease(topic, LeaseRequest(count=10)))
        bodies = [one.record.message.body for one in found]
        # Those that are leased are not given out again by the next leader.
        assert bodies == [f"message {number}".encode() for number in range(10, 20)]
