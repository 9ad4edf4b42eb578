"""Which node is asked, and when it is asked again: leaders that move, nodes that go away, answers
that are lost, and queues that several nodes have a part of."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.broker.partition.test_stream import batch
from tests.unit.broker.stage import bodies, claim, message
from tests.unit.calls.routing_kit import CALLS_MAX, Cluster, HandRoutes, on_nodes, until

from penstock.calls.routing.router import REFUSED_SECONDS, LocalPartitions
from penstock.model.calls import (
    Ack,
    Acquire,
    Append,
    AppendBatches,
    CancelMove,
    Ends,
    Finish,
    Lease,
    MoveBookmark,
    OpenShare,
    Purge,
    ReadBookmark,
    ShareLag,
    StartMove,
    Stats,
)
from penstock.model.errors import (
    DiskFull,
    InFlightLimit,
    NotLeader,
    OffsetOutOfRange,
    Overloaded,
    PurgeInProgress,
    Throttled,
    TopicNotFound,
)
from penstock.model.message import Claim
from penstock.model.ports import EARLIEST, LATEST, LeaseRequest, MoveTask
from penstock.model.topic import Kind, Obstacles, QueueStats, Topic, join_stats
from penstock.wire.internal.faults import OutcomeUnknown, Unreachable

TEN = LeaseRequest(count=10)
SOON_S = 10.0  # for what must not wait for a node that hangs


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with on_nodes(tmp_path, 1, 2, 3, in_flight_max=10) as cluster:
        yield cluster


def sent_to(cluster: Cluster, topic: Topic) -> dict[int, int]:
    """How many messages each node has got."""
    found = {}
    for number, node in cluster.nodes.items():
        queue = node.broker.partitions.find(topic)
        found[number] = 0 if queue is None else queue.stats().sent
    return found


def topic_of(name: str, *, partition_count: int) -> Topic:
    return Topic(name, "0" * 12, "us-east-1", name, Kind.STANDARD, partition_count, 1, 1, b"k")


# ── Leaders that move ────────────────────────────────────────────────────────────────────────


async def test_a_hint_is_followed_at_once(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(2,))
    stale = cluster.truth.copy()
    routed = cluster.routed(1, stale)
    cluster.truth.move(queue, 0, 3)
    async with asyncio.timeout(SOON_S):
        await routed.call(Append(queue, 0, [message("a")]))
    assert sent_to(cluster, queue) == {1: 0, 2: 0, 3: 1}
    assert [(leader, epoch) for _, leader, epoch in stale.hints] == [(3, 2)]
    assert stale.leader(queue, 0) == (3, 2)


async def test_who_led_a_moment_ago_follows_the_hint_of_its_own_broker(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(1,))
    stale = cluster.truth.copy()
    routed = cluster.routed(1, stale)
    cluster.truth.move(queue, 0, 2)
    await routed.call(Append(queue, 0, [message("a")]))
    (delivery,) = await routed.call(Lease(queue, TEN))
    assert list(await routed.call(Ack(queue, 0, [claim(delivery)]))) == [None]
    assert sent_to(cluster, queue)[2] == 1


async def test_a_request_waits_while_nobody_leads(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(None,))
    routed = cluster.routed(1)
    sending = asyncio.create_task(routed.call(Append(queue, 0, [message("a")])))
    receiving = asyncio.create_task(routed.call(Lease(queue, TEN)))
    done, _ = await asyncio.wait((sending, receiving), timeout=0.1)
    assert not done
    cluster.truth.move(queue, 0, 2)
    async with asyncio.timeout(SOON_S):
        (appended,) = await sending
        await receiving
    assert appended.offset == 0
    assert sent_to(cluster, queue) == {1: 0, 2: 1, 3: 0}


async def test_a_partition_that_nobody_leads_is_refused_when_the_time_is_over(
    cluster: Cluster,
) -> None:
    queue = await cluster.topic(led_by=(None,))
    routed = cluster.routed(1, retry_seconds_max=0.1)
    with pytest.raises(NotLeader):
        await routed.call(Append(queue, 0, [message("a")]))
    with pytest.raises(NotLeader):
        await routed.call(Lease(queue, TEN))
    with pytest.raises(NotLeader):
        await routed.call(Stats(queue))
    with pytest.raises(NotLeader):
        await routed.call(Lease(queue, LeaseRequest(wait_ms=50)))


async def test_two_nodes_that_believe_in_each_other_are_not_asked_for_ever(
    cluster: Cluster,
) -> None:
    queue = await cluster.topic(led_by=(2,))
    routed = cluster.routed(1, cluster.truth.copy(), retry_seconds_max=2.0)
    asked = 0

    async def elsewhere(_call: Ends) -> None:
        nonlocal asked
        asked += 1
        raise NotLeader(f"{queue.topic_id}/0", leader=2 + asked % 2, epoch=asked + 10)

    for number in (2, 3):
        cluster.nodes[number].owned.instead[Ends] = elsewhere
        cluster.nodes[number].service._led = lambda _topic, _partition: None
    with pytest.raises(NotLeader):
        await routed.call(Ends(queue, 0))
    assert 4 < asked < 250


# ── Nodes that go away ───────────────────────────────────────────────────────────────────────


async def test_what_did_not_leave_this_node_is_sent_to_the_next_leader(cluster: Cluster) -> None:
    queue = await cluster.topic("q.fifo", led_by=(2,), kind=Kind.FIFO)
    routed = cluster.routed(1)
    await cluster.nodes[2].vanish()
    sending = asyncio.create_task(routed.call(Append(queue, 0, [message(group="g")])))
    done, _ = await asyncio.wait((sending,), timeout=0.1)
    assert not done
    cluster.truth.move(queue, 0, 3)
    async with asyncio.timeout(SOON_S):
        await sending
    assert sent_to(cluster, queue) == {1: 0, 2: 0, 3: 1}


async def test_a_leader_that_stays_away_is_told_of_when_the_time_is_over(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(2,))
    routed = cluster.routed(1, retry_seconds_max=0.2)
    await cluster.nodes[2].vanish()
    with pytest.raises(Unreachable, match="Node 2"):
        await routed.call(Append(queue, 0, [message()]))


async def test_a_standard_message_goes_to_a_partition_whose_leader_is_there(
    cluster: Cluster,
) -> None:
    queue = await cluster.topic(led_by=(2, None, 3, 2))
    routed = cluster.routed(1)
    await cluster.nodes[2].vanish()
    async with asyncio.timeout(SOON_S):
        found = [
            (await routed.call(Append(queue, partition, [message()])))[0].partition
            for partition in (0, 1, 2, 3)
        ]
    assert found == [2, 2, 2, 2]


async def test_a_standard_message_goes_to_the_partitions_led_here_in_turn(
    cluster: Cluster,
) -> None:
    queue = await cluster.topic(led_by=(1, 1, 2, 3, 1, 2))
    routed = cluster.routed(1)
    found = [
        (await routed.call(Append(queue, turn, [message()])))[0].partition
        for turn in (2, 3, 5, 2, 3, 5, 2, 3, 5, 0, 4)
    ]
    assert found == [0, 1, 4, 0, 1, 4, 0, 1, 4, 0, 4]
    assert sent_to(cluster, queue) == {1: 11, 2: 0, 3: 0}


async def test_a_standard_message_goes_by_turn_where_nothing_is_led(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(2, 3, 2, 3))
    routed = cluster.routed(1)
    for turn in range(4):
        (appended,) = await routed.call(Append(queue, turn, [message()]))
        assert appended.partition == turn


async def test_a_message_that_is_to_be_stored_once_goes_to_the_same_partition_each_time(
    cluster: Cluster,
) -> None:
    """As a dead letter does, that is moved again after a crash."""
    queue = await cluster.topic(led_by=(1, 2))
    routed = cluster.routed(1)
    for _ in range(2):
        (appended,) = await routed.call(Append(queue, 1, [message(dedup_id="once")]))
        assert appended.partition == 1
    assert sent_to(cluster, queue) == {1: 0, 2: 1, 3: 0}


async def test_a_partition_led_here_that_has_just_gone_is_not_insisted_on(
    cluster: Cluster,
) -> None:
    queue = await cluster.topic(led_by=(1, 2))
    routed = cluster.routed(1, cluster.truth.copy())
    cluster.truth.move(queue, 0, 3)
    async with asyncio.timeout(SOON_S):
        (appended,) = await routed.call(Append(queue, 1, [message()]))
    assert appended.partition == 1


@pytest.mark.parametrize("error", [DiskFull("full"), Overloaded("damaged")])
async def test_a_node_that_takes_nothing_does_not_keep_messages_from_others(
    cluster: Cluster, error: Overloaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.calls.routing.router.REFUSED_SECONDS", 60.0)
    queue = await cluster.topic(led_by=(1, 2))
    routed = cluster.routed(1)
    is_certain = isinstance(error, DiskFull)
    refused = 0

    async def refuse(_call: Append) -> None:
        nonlocal refused
        refused += 1
        raise error

    cluster.nodes[1].owned.instead[Append] = refuse
    with contextlib.nullcontext() if is_certain else pytest.raises(Overloaded, match="damaged"):
        await routed.call(Append(queue, 1, [message()]))
    for _ in range(5):
        (appended,) = await routed.call(Append(queue, 1, [message()]))
        assert appended.partition == 1
    assert refused == 1
    assert sent_to(cluster, queue)[2] == 5 + is_certain


async def test_a_node_that_took_nothing_is_tried_again_after_a_while() -> None:
    routes = HandRoutes([1, 2])
    now = 0.0
    queue = topic_of("q", partition_count=2)
    routes.move(queue, 1, 1)
    nearby = LocalPartitions(1, routes, lambda: now)
    assert nearby.partition(queue) == 1
    nearby.refused(queue)
    assert nearby.partition(queue) is None
    now = REFUSED_SECONDS
    assert nearby.partition(queue) == 1


def test_turns_of_many_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.calls.routing.router.TURNS_MAX", 10)
    monkeypatch.setattr("penstock.calls.routing.router.REFUSED_MAX", 10)
    routes = HandRoutes([1])
    nearby = LocalPartitions(1, routes, lambda: 0.0)
    for number in range(100):
        queue = topic_of(str(number), partition_count=2)
        routes.move(queue, 0, 1)
        assert nearby.partition(queue) == 0
        nearby.refused(queue)
        assert len(nearby._turns) <= 10
        assert len(nearby._refused) <= 10


async def test_a_fifo_message_waits_for_the_leader_of_its_partition(cluster: Cluster) -> None:
    queue = await cluster.topic("q.fifo", led_by=(None, 1), kind=Kind.FIFO)
    routed = cluster.routed(1, retry_seconds_max=0.1)
    with pytest.raises(NotLeader):
        await routed.call(Append(queue, 0, [message(group="g", dedup_id="d")]))
    assert sent_to(cluster, queue)[1] == 0


async def _lose_the_answer(cluster: Cluster, call: str) -> None:
    """Node 2 has done it, and goes away before it says so; then it is back."""
    node = cluster.nodes[2]
    await until(lambda: call in node.owned.done)
    await node.vanish()
    del node.owned.held[call]
    await node.listen()


async def test_a_message_that_may_have_been_stored_is_not_sent_again(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(2, 3))
    routed = cluster.routed(1)
    cluster.nodes[2].owned.held["append"] = asyncio.Event()
    asking = asyncio.create_task(routed.call(Append(queue, 0, [message("a")])))
    await _lose_the_answer(cluster, "append")
    with pytest.raises(OutcomeUnknown, match="Outcome unknown") as unknown:
        await asking
    assert isinstance(unknown.value, Overloaded)
    assert sent_to(cluster, queue) == {1: 0, 2: 1, 3: 0}


async def test_a_fifo_message_whose_answer_was_lost_is_stored_once(cluster: Cluster) -> None:
    queue = await cluster.topic("q.fifo", led_by=(2,), kind=Kind.FIFO)
    routed = cluster.routed(1)
    cluster.nodes[2].owned.held["append"] = asyncio.Event()
    one = message("a", group="g", dedup_id="d")
    asking = asyncio.create_task(routed.call(Append(queue, 0, [one])))
    await _lose_the_answer(cluster, "append")
    (appended,) = await asking
    assert appended.message_id == one.message_id
    assert sent_to(cluster, queue)[2] == 1
    assert cluster.nodes[2].owned.begun.count("append") == 2


@pytest.mark.parametrize(("producer", "is_repeated"), [((7, 0, 0), True), ((-1, -1, -1), False)])
async def test_a_batch_is_repeated_if_its_producer_numbers_it(
    cluster: Cluster, producer: tuple[int, int, int], is_repeated: bool
) -> None:
    stream = await cluster.topic("s", led_by=(2,), kind=Kind.STREAM)
    routed = cluster.routed(1)
    cluster.nodes[2].owned.held["append_batches"] = asyncio.Event()
    data = batch("a", producer=producer)
    asking = asyncio.create_task(routed.call(AppendBatches(stream, 0, acks=-1, batches=[data])))
    await _lose_the_answer(cluster, "append_batches")
    if is_repeated:
        assert (await asking).base_offset == 0
    else:
        with pytest.raises(OutcomeUnknown):
            await asking
    assert (await routed.call(Ends(stream, 0))).high_watermark == 1


async def test_an_ack_whose_answer_was_lost_is_made_again(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(2,))
    routed = cluster.routed(1)
    await routed.call(Append(queue, 0, [message()]))
    (delivery,) = await routed.call(Lease(queue, TEN))
    cluster.nodes[2].owned.held["ack"] = asyncio.Event()
    asking = asyncio.create_task(routed.call(Ack(queue, 0, [claim(delivery)])))
    await _lose_the_answer(cluster, "ack")
    assert list(await asking) == [None]


# ── A node that hangs ────────────────────────────────────────────────────────────────────────


async def test_a_node_that_hangs_fills_its_own_compartment_and_no_other(cluster: Cluster) -> None:
    stuck = await cluster.topic("stuck", led_by=(2,))
    fine, here = await cluster.topic("fine", led_by=(3,)), await cluster.topic("here", led_by=(1,))
    routed = cluster.routed(1)
    gate = cluster.nodes[2].owned.held["append"] = asyncio.Event()
    hanging = [
        asyncio.create_task(routed.call(Append(stuck, 0, [message()]))) for _ in range(CALLS_MAX)
    ]
    await until(lambda: len(cluster.nodes[2].owned.begun) == CALLS_MAX)
    async with asyncio.timeout(SOON_S):
        with pytest.raises(Throttled, match="node 2"):
            await routed.call(Append(stuck, 0, [message()]))
        for topic in (fine, here):
            await routed.call(Append(topic, 0, [message()]))
            (delivery,) = await routed.call(Lease(topic, TEN))
            await routed.call(Ack(topic, 0, [claim(delivery)]))
    gate.set()
    assert len(await asyncio.gather(*hanging)) == CALLS_MAX


async def test_a_receive_passes_over_a_node_that_hangs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.model.call_times.LOOK_SECONDS_MAX", 0.05)
    queue = await cluster.topic(led_by=(2, 3))
    routed = cluster.routed(1)
    await routed.call(Append(queue, 1, [message("a"), message("b")]))
    hangs = asyncio.Event()

    async def hang(_call: Lease) -> list[object]:
        await hangs.wait()
        return []

    cluster.nodes[2].owned.instead[Lease] = hang
    async with asyncio.timeout(SOON_S):
        assert sorted(bodies(await routed.call(Lease(queue, TEN)))) == ["a", "b"]


# ── Queues that several nodes have a part of ─────────────────────────────────────────────────


async def test_a_receive_is_filled_from_all_nodes(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(1, 2, 3))
    routed = cluster.routed(1)
    for partition in range(3):
        await cluster.put(queue, partition, [message(f"{partition}{n}") for n in range(3)])
    first = await routed.call(Lease(queue, LeaseRequest(count=7)))
    rest = await routed.call(Lease(queue, TEN))
    assert (len(first), len(rest)) == (7, 2)
    assert len(set(bodies([*first, *rest]))) == 9
    assert {each.partition for each in first} == {0, 1, 2}
    assert list(await routed.call(Lease(queue, TEN))) == []


async def test_what_lies_elsewhere_does_not_wait_for_this_node_to_be_empty(
    cluster: Cluster,
) -> None:
    queue = await cluster.topic(led_by=(1, 2, 3))
    routed = cluster.routed(1)
    for partition in (1, 2, 0):
        await cluster.put(queue, partition, [message(str(partition)) for _ in range(9)])
        cluster.clock.advance(1_000)
    got = [bodies(await routed.call(Lease(queue, LeaseRequest())))[0] for _ in range(9)]
    assert got.count("0") <= 7
    assert {"1", "2"} <= set(got)


async def test_nodes_that_are_asked_alike_serve_mostly_what_they_lead(tmp_path: Path) -> None:
    async with on_nodes(tmp_path, 1, 2) as cluster:
        queue = await cluster.topic(led_by=(1, 2))
        for partition in range(2):
            await cluster.put(queue, partition, [message() for _ in range(150)])
        cluster.clock.advance(5_000)
        begun = asyncio.get_running_loop().time()
        elsewhere = 0
        for number, routed in ((1, cluster.routed(1)), (2, cluster.routed(2))):
            for _ in range(100):
                (delivery,) = await routed.call(Lease(queue, LeaseRequest()))
                elsewhere += delivery.partition != number - 1
                cluster.clock.advance(1)
        # Of the first hundred the 4th, 12th, 28th, 60th and 92nd; and one for each second it took.
        assert elsewhere <= 10 + 2 * (asyncio.get_running_loop().time() - begun)


async def test_a_receive_that_finds_nothing_here_asks_the_others_at_once(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(1, 2, 3))
    routed = cluster.routed(1)
    for turn in range(40):
        await cluster.put(queue, 1 + turn % 2, [message(str(turn))])
        async with asyncio.timeout(SOON_S):
            (delivery,) = await routed.call(Lease(queue, LeaseRequest()))
        assert bodies([delivery]) == [str(turn)]
        await routed.call(Ack(queue, delivery.partition, [claim(delivery)]))


async def test_a_queue_is_full_when_a_node_says_so_and_none_has_anything(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(2, 3))
    routed = cluster.routed(1)
    for partition in range(2):
        await routed.call(Append(queue, partition, [message() for _ in range(12)]))
    taken = 0
    for _ in range(4):
        with_room = await routed.call(Lease(queue, LeaseRequest(count=5)))
        taken += len(with_room)
    assert taken == 20
    with pytest.raises(InFlightLimit):
        await routed.call(Lease(queue, LeaseRequest(count=5)))


async def test_stats_are_summed_over_the_nodes(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(1, 2, 3))
    routed = cluster.routed(1)
    await cluster.put(queue, 0, [message()])
    cluster.clock.advance(1_000)
    await cluster.put(queue, 1, [message(), message()])
    await routed.call(Lease(queue, LeaseRequest(count=2)))
    stats = await routed.call(Stats(queue))
    assert (stats.visible, stats.in_flight, stats.sent, stats.received) == (1, 2, 3, 2)
    assert stats.oldest_sent_at_ms == cluster.clock.wall - 1_000


@pytest.mark.parametrize("asked", [1, 2, 3])
async def test_any_node_tells_what_keeps_messages_back_on_all_of_them(
    cluster: Cluster, asked: int
) -> None:
    queue = await cluster.topic("q.fifo", led_by=(1, 2, 3), kind=Kind.FIFO)
    for partition in range(3):
        for number in range(2 + partition):
            group, dedup_id = f"g{partition}", f"{partition}-{number}"
            await cluster.put(queue, partition, [message(group=group, dedup_id=dedup_id)])
    for _ in range(3):
        assert await cluster.routed(1).call(Lease(queue, LeaseRequest()))
    stats = await cluster.routed(asked).call(Stats(queue, is_detailed=True))
    assert stats.obstacles is not None
    assert (stats.obstacles.blocked, stats.obstacles.locked_groups) == (6, 3)
    assert [(lock.partition, lock.group, lock.blocked) for lock in stats.obstacles.locks] == [
        (2, "g2", 3),
        (1, "g1", 2),
        (0, "g0", 1),
    ]


def test_without_the_obstacles_of_one_node_there_are_none() -> None:
    """A node of an older version tells counts only."""
    parts = [QueueStats(visible=1, obstacles=Obstacles(available=1)), QueueStats(visible=1)]
    assert (join_stats(parts).visible, join_stats(parts).obstacles) == (2, None)


async def test_a_node_that_has_ceased_to_lead_does_not_answer_for_what_it_led(
    cluster: Cluster,
) -> None:
    queue = await cluster.topic(led_by=(1, 2))
    away = cluster.routed(3)
    cluster.truth.move(queue, 0, 2)
    await away.call(Append(queue, 0, [message()]))
    cluster.truth.move(queue, 0, 1)
    await away.call(Append(queue, 0, [message(), message()]))
    for own in (1, 2, 3):
        stale = cluster.truth.copy()
        cluster.truth.move(queue, 0, 1)
        stale.move(queue, 0, 2)  # in the same epoch: it has heard of another election
        routed = cluster.routed(own, stale, retry_seconds_max=0.2)
        with pytest.raises(NotLeader):
            await routed.call(Stats(queue))
        with pytest.raises(NotLeader):
            await routed.call(Purge(queue))
        cluster.clock.advance(60_000)


async def test_a_node_that_leads_more_than_when_it_answered_is_asked_again(
    cluster: Cluster,
) -> None:
    """Its leader dies while a queue is asked about, and another node that has answered already
    leads that partition from then on."""
    queue = await cluster.topic(led_by=(1, 2))
    routed = cluster.routed(1)
    asked: list[list[int]] = []

    async def count(call: Stats) -> QueueStats:
        asked.append([partition for partition, _ in call.counted_on])
        return QueueStats(visible=len(call.counted_on))

    async def die(_call: Stats) -> QueueStats:
        cluster.truth.move(queue, 1, 1)
        raise Unreachable("the node is dead")

    cluster.nodes[1].owned.instead[Stats] = count
    cluster.nodes[2].owned.instead[Stats] = die
    assert (await routed.call(Stats(queue))).visible == 2
    assert asked == [[0], [0, 1]]


async def test_stats_without_one_of_the_nodes_are_refused(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(1, 2))
    routed = cluster.routed(1, retry_seconds_max=0.1)
    await cluster.nodes[2].vanish()
    with pytest.raises(Unreachable):
        await routed.call(Stats(queue))


async def test_a_purge_reaches_all_nodes_and_goes_on_where_it_failed(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(1, 2, 3))
    routed = cluster.routed(1, retry_seconds_max=0.1)
    for partition in range(3):
        await cluster.put(queue, partition, [message(), message()])
    await cluster.nodes[3].vanish()
    with pytest.raises(Unreachable):
        await routed.call(Purge(queue))
    await cluster.nodes[3].listen()
    routed = cluster.routed(1)
    await routed.call(Purge(queue))  # the others say that they were purged already
    assert (await routed.call(Stats(queue))).visible == 0
    with pytest.raises(PurgeInProgress):
        await routed.call(Purge(queue))


async def test_a_purge_whose_answer_was_lost_has_happened(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(2,))
    routed = cluster.routed(1)
    await routed.call(Append(queue, 0, [message()]))
    node, begun = cluster.nodes[2], asyncio.Event()

    async def silently(call: Purge) -> None:
        await node.broker.call(call)
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()

    node.owned.instead[Purge] = silently
    purging = asyncio.create_task(routed.call(Purge(queue)))
    await begun.wait()
    await node.vanish()
    await node.listen()
    await purging
    assert (await routed.call(Stats(queue))).visible == 0


async def test_a_move_task_of_a_queue_that_is_gone_is_refused(cluster: Cluster) -> None:
    routed = cluster.routed(1)
    arn = "arn:aws:sqs:us-east-1:000000000000:gone"
    with pytest.raises(TopicNotFound):
        await routed.call(StartMove(MoveTask("t", arn, None, None, "RUNNING", started_at_ms=1)))


async def test_a_move_task_is_looked_for_where_somebody_answers(cluster: Cluster) -> None:
    routed = cluster.routed(1)
    await cluster.nodes[2].vanish()
    with pytest.raises(Unreachable):
        await routed.call(CancelMove("t"))  # it may run there


@pytest.mark.parametrize(("start", "left"), [(LATEST, ["new"] * 3), (EARLIEST, ["new", "old"] * 3)])
async def test_a_share_begins_at_the_same_place_on_all_nodes(
    cluster: Cluster, start: int, left: list[str]
) -> None:
    queue = await cluster.topic(led_by=(1, 2, 3))
    routed = cluster.routed(3)
    for partition in range(3):
        await cluster.put(queue, partition, [message("old")])
    share = await routed.call(OpenShare(queue, 0, "group", start=start))
    await cluster.known(share)
    for partition in range(3):
        await cluster.put(queue, partition, [message("new")])
    got = await routed.call(Lease(share, TEN))
    assert sorted(bodies(got)) == sorted(left)
    for each in got:
        assert list(await routed.call(Ack(share, each.partition, [claim(each)]))) == [None]
    assert [await routed.call(ShareLag(share, partition)) for partition in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("start", [LATEST, EARLIEST])
async def test_a_share_is_known_to_every_leader_when_it_is_open(
    cluster: Cluster, start: int
) -> None:
    queue = await cluster.topic(led_by=(1, 2, 3))
    share = await cluster.routed(1).call(OpenShare(queue, 0, "group", start=start))
    for node in cluster.nodes.values():
        assert node.owned.find_share(queue, "group") == share


async def test_a_share_begins_at_the_start_though_a_leader_is_away(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.queues.shares.OPEN_SECONDS_MAX", 0.1)
    queue = await cluster.topic(led_by=(1, 2))
    await cluster.nodes[2].vanish()
    share = await cluster.routed(1).call(OpenShare(queue, 0, "group", start=EARLIEST))
    assert cluster.nodes[1].owned.find_share(queue, "group") == share


async def test_a_share_that_is_opened_twice_at_the_end_begins_once(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(1, 2, 3))
    frontends = [cluster.routed(number) for number in (1, 2, 3, 1)]
    held = cluster.nodes[3].owned.held["restart_share"] = asyncio.Event()
    opening = [
        asyncio.create_task(each.call(OpenShare(queue, 0, "group", start=LATEST)))
        for each in frontends
    ]
    done = cluster.nodes[3].owned.done
    await until(lambda: len(done) == 1)
    for partition in range(3):
        await cluster.put(queue, partition, [message(str(partition))])
    held.set()
    shares = await asyncio.gather(*opening)
    assert len({share.topic_id for share in shares}) == 1
    assert done == ["restart_share"]
    assert sorted(bodies(await frontends[0].call(Lease(shares[0], TEN)))) == ["0", "1", "2"]


async def test_a_share_that_cannot_begin_everywhere_is_none(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(1, 2))
    routed = cluster.routed(1, retry_seconds_max=0.1)
    await cluster.nodes[2].vanish()
    with pytest.raises(Unreachable):
        await routed.call(OpenShare(queue, 0, "group", start=LATEST))
    await until(lambda: routed.find_share(queue, "group") is None)


async def test_an_ordered_share_of_a_range_is_read_from_another_node(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(2,))
    routed = cluster.routed(3)
    for body in ("a", "b"):
        await cluster.put(queue, 0, [message(body, group="g")])
    end = (await routed.call(Ends(queue, 0))).high_watermark
    share = await routed.call(
        OpenShare(queue, 0, "group", start=EARLIEST, is_ordered=True, until=(end,))
    )
    await cluster.known(share)
    await cluster.put(queue, 0, [message("new", group="g")])
    take = Acquire(share, 0, 10, bytes_max=1 << 20, lease_ms=30_000, group_max=1)
    for left in (2, 1):
        assert await routed.call(ShareLag(share, 0)) == left
        [(offset, lease_seq, _)] = (await routed.call(take)).picks
        assert (await routed.call(take)).picks == [], "its group is locked"
        claims = [Claim(0, offset, lease_seq)]
        assert list(await routed.call(Finish(share, 0, claims))) == [None]
    assert await routed.call(ShareLag(share, 0)) == 0
    assert (await routed.call(take)).picks == []


async def test_a_bookmark_is_at_the_leader_of_its_partition(cluster: Cluster) -> None:
    stream = await cluster.topic("s", led_by=(1, 2), kind=Kind.STREAM)
    first, second = cluster.routed(1), cluster.routed(3)
    with pytest.raises(OffsetOutOfRange):
        await first.call(MoveBookmark(stream, 1, "r", 5))
    assert await first.call(MoveBookmark(stream, 1, "r", 0)) == 0
    assert await second.call(ReadBookmark(stream, 1, "r")) == 0
    assert cluster.nodes[2].owned.begun.count("read_bookmark") == 1


# ── Listeners ────────────────────────────────────────────────────────────────────────────────


async def test_a_listener_goes_with_the_leader(cluster: Cluster) -> None:
    stream = await cluster.topic("s", led_by=(1,), kind=Kind.STREAM)
    routed = cluster.routed(1)
    await routed.call(Ends(stream, 0))
    heard = asyncio.Event()
    end = routed.on_advance(stream, 0, heard.set)
    for node in (2, 1, 3, 2):
        heard.clear()
        cluster.truth.move(stream, 0, node)
        async with asyncio.timeout(SOON_S):
            await heard.wait()  # that it has moved
            before = (await routed.call(Ends(stream, 0))).high_watermark
            heard.clear()
            await routed.call(AppendBatches(stream, 0, acks=-1, batches=[batch("a")]))
            while (await routed.call(Ends(stream, 0))).high_watermark == before:
                await heard.wait()
            await heard.wait()
    end()


async def test_a_listener_finds_a_leader_that_is_not_ready_yet(cluster: Cluster) -> None:
    stream = await cluster.topic("s", led_by=(2,), kind=Kind.STREAM)
    routed = cluster.routed(1)
    heard = asyncio.Event()
    end = routed.on_advance(stream, 0, heard.set)
    on_advance = cluster.nodes[1].owned.on_advance
    refused = asyncio.Event()

    def not_yet(*_args: object) -> None:
        refused.set()
        raise NotLeader(f"{stream.topic_id}/0")

    cluster.nodes[1].owned.on_advance = not_yet  # type: ignore[method-assign,assignment]
    cluster.truth.move(stream, 0, 1)
    async with asyncio.timeout(SOON_S):
        await refused.wait()
        cluster.nodes[1].owned.on_advance = on_advance  # type: ignore[method-assign]
        await until(lambda: cluster.nodes[1].owned.begun.count("on_advance") == 1)
        heard.clear()
        await routed.call(AppendBatches(stream, 0, acks=-1, batches=[batch("a")]))
        await heard.wait()
    end()
