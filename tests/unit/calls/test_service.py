"""Calls of other nodes: topics that are not known yet, callers with another epoch in mind, answers
that nobody reads, and questions that wait."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from tests.unit.broker.partition.test_stream import batch
from tests.unit.broker.stage import bodies, message
from tests.unit.calls.routing_kit import Cluster, on_nodes, until

from penstock.calls.internal.client import InternalClient
from penstock.calls.remote.service import IDLE_SECONDS_MAX, REMEMBERED_MAX
from penstock.model.calls import (
    Acquire,
    Append,
    AppendBatches,
    BrokerCall,
    Ends,
    Lease,
    OpenShare,
    Stats,
)
from penstock.model.errors import InvalidRequest, NotLeader, TopicNotFound
from penstock.model.message import Claim
from penstock.model.ports import EARLIEST, LeaseRequest, StreamEnds
from penstock.model.topic import Kind, Topic
from penstock.wire.internal import broker_calls as wire
from penstock.wire.internal.calls import Call, Nothing, Q, R

T = TypeVar("T")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with on_nodes(tmp_path, 1) as cluster:
        yield cluster


class Asker:
    def __init__(self, client: InternalClient) -> None:
        self._client = client

    async def ask(self, call: Call[Q, R], request: Q) -> R:
        return await self._client.call(call, request, timeout_ms=5_000)

    async def call(self, call: BrokerCall[T], *, epoch: int = wire.ANY_EPOCH, ticket: int = 0) -> T:
        form = wire.wire_of(type(call))
        reply: T = await self.ask(form, form.pack(call, epoch, (1, ticket)))
        return reply


def lease(topic: Topic, *, wait_ms: int = 0) -> Lease:
    return Lease(topic, LeaseRequest(10, 30_000, wait_ms))


def give_back(topic: Topic, ticket: int, *, session: int = 1) -> wire.GiveBack:
    return wire.GiveBack(topic.topic_id, topic.modified_at_ms, session, ticket)


# ── Which topic ──────────────────────────────────────────────────────────────────────────────


async def test_a_topic_that_another_node_knows_already_is_waited_for(cluster: Cluster) -> None:
    known = await cluster.topic("known")
    coming = msgspec.structs.replace(known, topic_id="a" * 32, name="coming")
    cluster.truth.move(coming, 0, 1)
    cluster.nodes[1].service._catch_up_seconds = 30.0  # the store may be slow to commit
    asking = asyncio.create_task(cluster.remote(1).call(Append(coming, 0, [message()])))
    done, _ = await asyncio.wait((asking,), timeout=0.05)
    assert not done
    await cluster.nodes[1].catalog.create(coming)
    (appended,) = await asking
    assert appended.offset == 0


async def test_settings_that_another_node_knows_already_are_waited_for(cluster: Cluster) -> None:
    queue = await cluster.topic()
    catalog = cluster.nodes[1].catalog
    newer = queue.with_settings(now_ms=queue.modified_at_ms + 5, delay_ms=1_000)
    asking = asyncio.create_task(cluster.remote(1).call(Stats(newer)))
    done, _ = await asyncio.wait((asking,), timeout=0.05)
    assert not done
    await catalog.change(queue.account, queue.region, queue.name, lambda _: newer)
    await asking
    newest = queue.with_settings(now_ms=queue.modified_at_ms + 9)
    assert (
        await cluster.remote(1).call(Stats(newest))
    ).sent == 0  # an older entry will do in the end


async def test_a_partition_that_a_topic_does_not_have_is_not_found(cluster: Cluster) -> None:
    queue = await cluster.topic()
    asker = Asker(cluster.client(1, "x"))
    for partition in (-1, 1, 2**40):
        with pytest.raises(TopicNotFound):
            await asker.call(Ends(queue, partition))
        with pytest.raises(TopicNotFound):
            await asker.call(Append(queue, partition, [message()]))
    with pytest.raises(TopicNotFound):
        await asker.ask(
            wire.ADVANCED, wire.Advanced(queue.topic_id, 0, 100, [(0, None), (1, None)])
        )
    with pytest.raises(InvalidRequest):
        await asker.ask(wire.ADVANCED, wire.Advanced(queue.topic_id, 0, 100, []))


async def test_an_unreadable_question_is_refused_and_the_connection_goes_on(
    cluster: Cluster,
) -> None:
    queue = await cluster.topic()
    client = cluster.client(1, "x")
    append = wire.wire_of(Append).number
    wrong = Call(append, "wrong", wire.OfTopic, Nothing, is_idempotent=True)
    with pytest.raises(InvalidRequest, match="cannot be decoded"):
        await client.call(wrong, wire.OfTopic(queue.topic_id, 0), timeout_ms=5_000)
    assert (await Asker(client).call(Ends(queue, 0))).high_watermark == 0


# ── Epochs ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("believed", "leader", "hint"),
    [
        pytest.param(2, 1, None, id="the same"),
        pytest.param(wire.ANY_EPOCH, 1, None, id="any"),
        pytest.param(1, 1, (1, 2), id="one before: it leads in a later one"),
        pytest.param(3, 1, (-1, 2), id="one that this node has not heard of"),
        pytest.param(1, 7, (7, 2), id="one in which it led, and does not any more"),
        pytest.param(3, 7, (-1, 2), id="one in which it may have been elected again"),
    ],
)
async def test_a_caller_with_another_epoch_in_mind_is_refused(
    cluster: Cluster, believed: int, leader: int, hint: tuple[int, int] | None
) -> None:
    queue = await cluster.topic(led_by=(1,))
    cluster.truth.move(queue, 0, leader)
    assert cluster.truth.leader(queue, 0) == (leader, 2)
    asker = Asker(cluster.client(1, "x"))
    call = Append(queue, 0, [message()])
    if hint is None:
        assert len(await asker.call(call, epoch=believed)) == 1
        return
    with pytest.raises(NotLeader) as refused:
        await asker.call(call, epoch=believed)
    assert (refused.value.leader, refused.value.epoch) == hint
    assert refused.value.place == f"{queue.topic_id}/0"
    assert "append" not in cluster.nodes[1].owned.begun


# ── Answers that nobody reads ────────────────────────────────────────────────────────────────


async def test_what_was_leased_is_given_back_by_its_ticket(cluster: Cluster) -> None:
    queue = await cluster.topic()
    asker = Asker(cluster.client(1, "x"))
    await cluster.nodes[1].broker.call(Append(queue, 0, [message("a"), message("b")]))
    assert len(await asker.call(lease(queue), ticket=1)) == 2
    await asker.ask(wire.GIVE_BACK, give_back(queue, 1, session=2))  # another's
    assert not await asker.call(lease(queue), ticket=2)
    await asker.ask(wire.GIVE_BACK, give_back(queue, 1))
    await asker.ask(wire.GIVE_BACK, give_back(queue, 1))  # once is enough
    again = await asker.call(lease(queue), ticket=3)
    assert sorted(bodies(again)) == ["a", "b"]


async def test_an_old_ticket_gives_back_nothing_that_another_has_leased_since(
    cluster: Cluster,
) -> None:
    queue = await cluster.topic()
    asker, node = Asker(cluster.client(1, "x")), cluster.nodes[1]
    await node.broker.call(Append(queue, 0, [message("a")]))
    assert len(await asker.call(lease(queue), ticket=1)) == 1
    cluster.clock.advance(30_001)
    (newer,) = await asker.call(lease(queue), ticket=2)
    await asker.ask(wire.GIVE_BACK, give_back(queue, 1))
    assert node.in_flight(queue) == 1
    assert not await asker.call(lease(queue), ticket=3)
    assert newer.attempt == 2
    await asker.ask(wire.GIVE_BACK, give_back(queue, 2))
    assert node.in_flight(queue) == 0


async def test_what_a_share_group_acquired_is_given_back_by_its_ticket(cluster: Cluster) -> None:
    stream = await cluster.topic("s", kind=Kind.STREAM)
    node, asker = cluster.nodes[1], Asker(cluster.client(1, "x"))
    share = await node.broker.call(OpenShare(stream, 0, "g", start=EARLIEST))
    await node.broker.call(AppendBatches(stream, 0, acks=-1, batches=[batch("a", "b")]))
    acquired = await asker.call(Acquire(share, 0, 10, 1_000_000, 30_000), ticket=7)
    assert len(acquired.picks) == 2
    await asker.ask(wire.GIVE_BACK, give_back(share, 8))  # another's
    assert node.in_flight(share) == 2
    await asker.ask(wire.GIVE_BACK, give_back(share, 7))
    assert node.in_flight(share) == 0


async def test_a_lease_that_still_waits_is_ended_by_its_ticket(cluster: Cluster) -> None:
    """Its connection may be dead without this node knowing: it must not be served."""
    queue = await cluster.topic()
    node = cluster.nodes[1]
    waiting = asyncio.create_task(
        Asker(cluster.client(1, "x")).call(lease(queue, wait_ms=20_000), ticket=1)
    )
    await until(lambda: node.waits(queue) == 1)
    await Asker(cluster.client(1, "x")).ask(wire.GIVE_BACK, give_back(queue, 1))
    await until(lambda: node.waits(queue) == 0)
    await asyncio.wait((waiting,))
    await node.broker.call(Append(queue, 0, [message()]))
    assert node.in_flight(queue) == 0


async def test_tickets_are_remembered_up_to_a_bound(cluster: Cluster) -> None:
    queue = await cluster.topic()
    service, node = cluster.nodes[1].service, cluster.nodes[1]
    await node.broker.call(Append(queue, 0, [message()]))
    (delivery,) = await node.broker.call(Lease(queue, LeaseRequest()))
    held = [Claim(0, delivery.record.offset, delivery.lease_seq)]
    for ticket in range(REMEMBERED_MAX + 10):
        service._remember((1, ticket), held)
    assert len(service._leased) == REMEMBERED_MAX
    assert (1, 9) not in service._leased
    assert service._leased[1, REMEMBERED_MAX + 9] == held


# ── Questions that wait ──────────────────────────────────────────────────────────────────────


async def test_the_ends_are_told_when_they_are_not_what_is_known(cluster: Cluster) -> None:
    stream = await cluster.topic("s", led_by=(1, 1), kind=Kind.STREAM)
    asker = Asker(cluster.client(1, "x"))

    def asked(*known: StreamEnds | None, wait_ms: int = 20_000) -> wire.Advanced:
        return wire.Advanced(stream.topic_id, 0, wait_ms, list(enumerate(known)))

    told = await asker.ask(wire.ADVANCED, asked(None, None))
    assert [partition for partition, _ in told.moved] == [0, 1]
    known = [ends for _, ends in told.moved]
    assert not (await asker.ask(wire.ADVANCED, asked(*known, wait_ms=30))).moved
    waiting = asyncio.create_task(asker.ask(wire.ADVANCED, asked(*known)))
    done, _ = await asyncio.wait((waiting,), timeout=0.05)
    assert not done
    await cluster.nodes[1].broker.call(AppendBatches(stream, 1, acks=-1, batches=[batch("a")]))
    ((partition, ends),) = (await waiting).moved
    assert (partition, ends.high_watermark) == (1, 1)


async def test_a_partition_that_is_led_elsewhere_is_told_apart_from_the_others(
    cluster: Cluster,
) -> None:
    stream = await cluster.topic("s", led_by=(1, 9), kind=Kind.STREAM)
    told = await Asker(cluster.client(1, "x")).ask(
        wire.ADVANCED, wire.Advanced(stream.topic_id, 0, 20_000, [(0, None), (1, None)])
    )
    assert [partition for partition, _ in told.moved] == [0]
    assert list(told.gone) == [1]


async def test_what_became_available_between_two_questions_is_told_at_once(
    cluster: Cluster,
) -> None:
    queue = await cluster.topic()
    broker = cluster.nodes[1].broker
    share = await broker.call(OpenShare(queue, 0, "g", start=EARLIEST))
    asker = Asker(cluster.client(1, "x"))

    async def ask(number: int, wait_ms: int) -> int | None:
        told = await asker.ask(
            wire.AVAILABLE, wire.Available(share.topic_id, 0, wait_ms, [(0, number)])
        )
        return told.numbers[0][1] if told.numbers else None

    known = await ask(0, 20_000)
    assert known is not None
    assert await ask(known, 30) is None
    await broker.call(Append(queue, 0, [message()]))
    later = await ask(known, 20_000)
    assert later is not None
    assert later != known


async def test_counts_that_nobody_asks_for_are_dropped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await cluster.topic()
    broker, watching = cluster.nodes[1].broker, cluster.nodes[1].service._listeners
    shares = [await broker.call(OpenShare(queue, 0, group, start=EARLIEST)) for group in "ab"]
    for share in shares:
        await watching.available(share, [(0, 0)], wait_ms=0)
    assert len(watching._counters) == 2
    watching._counters[shares[0].topic_id, 0].used_at -= IDLE_SECONDS_MAX + 1
    await watching.available(shares[1], [(0, 0)], wait_ms=0)
    assert [share_id for share_id, _ in watching._counters] == [shares[1].topic_id]
    monkeypatch.setattr("penstock.calls.remote.service.COUNTERS_MAX", 1)
    await watching.available(shares[0], [(0, 0)], wait_ms=0)
    assert [share_id for share_id, _ in watching._counters] == [shares[0].topic_id]
