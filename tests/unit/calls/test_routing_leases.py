"""Long polls over several nodes: the first that has something serves, and nothing is lost when the
others had something too, when leaders move, when nodes die and when whoever waits goes away."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.broker.stage import bodies, claim, message
from tests.unit.calls.routing_kit import Cluster, on_nodes, until

from penstock.calls.routing.router import Router
from penstock.model.calls import Ack, Append, Lease
from penstock.model.errors import TopicNotFound
from penstock.model.message import Delivery
from penstock.model.ports import LeaseRequest
from penstock.model.topic import Topic

LONG = LeaseRequest(count=10, wait_ms=20_000)
SOON_S = 10.0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with on_nodes(tmp_path, 1, 2, 3) as cluster:
        yield cluster


async def parked(
    cluster: Cluster, routed: Router, topic: Topic, at: dict[int, int], request: LeaseRequest = LONG
) -> "asyncio.Task[Sequence[Delivery]]":
    """A receive that waits at these nodes; ``at``: how many wait there by then."""
    task = asyncio.create_task(routed.call(Lease(topic, request)))
    await wait_for(cluster, topic, at)
    return task


async def wait_for(cluster: Cluster, topic: Topic, at: dict[int, int]) -> None:
    await until(
        lambda: all(cluster.nodes[node].waits(topic) == count for node, count in at.items())
    )


async def drain(routed: Router, topic: Topic) -> list[str]:
    found: list[str] = []
    while got := await routed.call(Lease(topic, LeaseRequest(count=10))):
        found += bodies(got)
        for each in got:
            await routed.call(Ack(topic, each.partition, [claim(each)]))
    return sorted(found)


async def test_a_long_poll_waits_at_all_nodes_and_is_called_off_at_the_others(
    cluster: Cluster,
) -> None:
    queue = await cluster.topic(led_by=(1, 2, 3))
    routed = cluster.routed(1)
    for partition in range(3):
        waiting = await parked(cluster, routed, queue, {1: 1, 2: 1, 3: 1})
        await cluster.put(queue, partition, [message(str(partition))])
        async with asyncio.timeout(SOON_S):
            assert bodies(await waiting) == [str(partition)]
        await wait_for(cluster, queue, {1: 0, 2: 0, 3: 0})


async def test_what_two_nodes_have_at_the_same_time_is_handed_out_once(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(2, 3))
    routed = cluster.routed(1)
    for round_ in range(10):
        waiting = await parked(
            cluster, routed, queue, {2: 1, 3: 1}, LeaseRequest(count=1, wait_ms=20_000)
        )
        sent = [f"{round_} {partition}" for partition in range(2)]
        await asyncio.gather(
            *(routed.call(Append(queue, n, [message(body)])) for n, body in enumerate(sent))
        )
        async with asyncio.timeout(SOON_S):
            (first,) = await waiting
            await routed.call(Ack(queue, first.partition, [claim(first)]))
            # The other was given back, or never taken: it need not wait for a lease to run out.
            await until(lambda: sum(node.in_flight(queue) for node in cluster.nodes.values()) == 0)
            rest = await drain(routed, queue)
        assert sorted([*bodies([first]), *rest]) == sent


async def test_a_long_poll_follows_the_leaders(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(1, 2))
    routed = cluster.routed(1)
    waiting = await parked(cluster, routed, queue, {1: 1, 2: 1, 3: 0})
    cluster.truth.move(queue, 1, 3)
    await wait_for(cluster, queue, {1: 1, 2: 0, 3: 1})
    cluster.truth.move(queue, 0, None)
    await wait_for(cluster, queue, {1: 0, 2: 0, 3: 1})
    cluster.truth.move(queue, 0, 2)
    await wait_for(cluster, queue, {1: 0, 2: 1, 3: 1})
    await routed.call(Append(queue, 0, [message("a")]))
    async with asyncio.timeout(SOON_S):
        assert bodies(await waiting) == ["a"]


async def test_a_long_poll_goes_to_a_node_that_begins_to_lead_a_part(cluster: Cluster) -> None:
    """Nobody sends it away from where it waits: it hears of the change by itself."""
    queue = await cluster.topic(led_by=(1, None, 1))
    routed = cluster.routed(1)
    waiting = await parked(cluster, routed, queue, {1: 1})
    async with asyncio.timeout(SOON_S):
        cluster.truth.move(queue, 1, 2)
        await wait_for(cluster, queue, {1: 1, 2: 1})
        cluster.truth.move(queue, 2, 3)
        await wait_for(cluster, queue, {1: 1, 2: 1, 3: 1})
        await cluster.put(queue, 2, [message("a")])
        assert bodies(await waiting) == ["a"]


async def test_a_long_poll_on_one_partition_follows_it_from_here_and_back(
    cluster: Cluster,
) -> None:
    queue = await cluster.topic(led_by=(1,))
    routed = cluster.routed(1)
    waiting = await parked(cluster, routed, queue, {1: 1})
    for node in (2, 1, 3):
        cluster.truth.move(queue, 0, node)
        await wait_for(cluster, queue, {n: int(n == node) for n in (1, 2, 3)})
    await routed.call(Append(queue, 0, [message("a")]))
    async with asyncio.timeout(SOON_S):
        assert bodies(await waiting) == ["a"]


async def test_a_node_that_dies_during_a_long_poll_takes_only_its_own_part_along(
    cluster: Cluster,
) -> None:
    queue = await cluster.topic(led_by=(1, 2, 3))
    routed = cluster.routed(1)
    waiting = await parked(cluster, routed, queue, {1: 1, 2: 1, 3: 1})
    await cluster.nodes[2].vanish()
    await wait_for(cluster, queue, {1: 1, 2: 0, 3: 1})
    assert not waiting.done()
    await cluster.put(queue, 2, [message("a")])
    async with asyncio.timeout(SOON_S):
        assert bodies(await waiting) == ["a"]


async def test_a_node_that_comes_back_is_waited_at_again(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(2,))
    routed = cluster.routed(1)
    waiting = await parked(cluster, routed, queue, {2: 1})
    await cluster.nodes[2].vanish()
    await wait_for(cluster, queue, {2: 0})
    await cluster.nodes[2].listen()
    await wait_for(cluster, queue, {2: 1})
    await routed.call(Append(queue, 0, [message("a")]))
    async with asyncio.timeout(SOON_S):
        assert bodies(await waiting) == ["a"]


async def test_a_node_that_sends_its_waits_away_is_waited_at_again(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(1, 2))
    routed = cluster.routed(1)
    waiting = await parked(cluster, routed, queue, {1: 1, 2: 1})
    cluster.nodes[2].broker.partitions.end_waits()
    await wait_for(cluster, queue, {1: 1, 2: 1})
    assert not waiting.done()
    await cluster.put(queue, 1, [message("a")])
    async with asyncio.timeout(SOON_S):
        assert bodies(await waiting) == ["a"]


async def test_a_draining_node_answers_what_is_parked_elsewhere_too(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(2, 3))
    routed = cluster.routed(1)
    waiting = await parked(cluster, routed, queue, {2: 1, 3: 1})
    routed.end_waits()
    async with asyncio.timeout(SOON_S):
        assert list(await waiting) == []
        assert list(await routed.call(Lease(queue, LONG))) == []
    await wait_for(cluster, queue, {2: 0, 3: 0})


async def test_a_long_poll_ends_with_its_queue(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(1, 2))
    routed = cluster.routed(1)
    waiting = await parked(cluster, routed, queue, {1: 1, 2: 1})
    await cluster.nodes[3].catalog.delete(
        queue.account, queue.region, queue.name, now_ms=cluster.clock.wall
    )
    async with asyncio.timeout(SOON_S):
        with pytest.raises(TopicNotFound):
            await waiting


async def test_a_long_poll_over_several_nodes_ends_empty_in_time(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(1, 2, 3))
    routed = cluster.routed(1)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert list(await routed.call(Lease(queue, LeaseRequest(wait_ms=300)))) == []
    assert 0.25 <= loop.time() - begun < SOON_S
    await wait_for(cluster, queue, {1: 0, 2: 0, 3: 0})


async def test_a_hundred_long_polls_get_a_hundred_messages(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(1, 2, 3))
    frontends = [cluster.routed(number) for number in (1, 2, 3)]
    one = LeaseRequest(count=1, wait_ms=20_000)
    waiting = [asyncio.create_task(frontends[n % 3].call(Lease(queue, one))) for n in range(99)]
    await wait_for(cluster, queue, {1: 99, 2: 99, 3: 99})
    sent = [str(n) for n in range(99)]
    for n, body in enumerate(sent):
        await frontends[n % 3].call(Append(queue, n % 3, [message(body)]))
    async with asyncio.timeout(20):
        got = [each for deliveries in await asyncio.gather(*waiting) for each in deliveries]
    assert sorted(bodies(got)) == sorted(sent)


@pytest.mark.parametrize("partition", [0, 1])
async def test_a_receive_that_is_broken_off_at_whatever_turn_loses_nothing(
    cluster: Cluster, partition: int
) -> None:
    queue = await cluster.topic(led_by=(1, 2))
    routed = cluster.routed(1)
    await cluster.put(queue, partition, [message()])
    await drain(routed, queue)
    broken_off = 0
    for turns in range(40):
        waiting = await parked(cluster, routed, queue, {1: 1, 2: 1})
        sending = asyncio.create_task(cluster.put(queue, partition, [message(str(turns))]))
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((sending, waiting))
        got = []
        if waiting.cancelled():
            broken_off += 1
        else:
            got = bodies(waiting.result())
            for each in waiting.result():
                await routed.call(Ack(queue, each.partition, [claim(each)]))
        async with asyncio.timeout(SOON_S):
            await wait_for(cluster, queue, {1: 0, 2: 0})
            await until(lambda: sum(node.in_flight(queue) for node in cluster.nodes.values()) == 0)
        assert [*got, *await drain(routed, queue)] == [str(turns)]
    assert broken_off > 3


@pytest.mark.parametrize("leader", [1, 2])
async def test_giving_back_an_old_lease_never_releases_the_newer_one(
    cluster: Cluster, leader: int
) -> None:
    queue = await cluster.topic(led_by=(leader,))
    routed, node = cluster.routed(1), cluster.nodes[leader]
    await cluster.put(queue, 0, [message("a")])
    old = await routed.call(Lease(queue, LeaseRequest(lease_ms=1_000)))
    cluster.clock.advance(1_001)
    newer = await cluster.routed(2).call(Lease(queue, LeaseRequest(lease_ms=30_000)))
    assert (len(old), len(newer)) == (1, 1)
    before = node.owned.begun.count("extend")
    routed._leasing.give_back(queue, old)
    await until(lambda: node.owned.begun.count("extend") > before)
    await until(lambda: not routed._leaders._tasks)
    assert node.in_flight(queue) == 1
    assert not await routed.call(Lease(queue, LeaseRequest()))
    routed._leasing.give_back(queue, newer)
    await until(lambda: node.in_flight(queue) == 0)


# What happens in which order, around parked receives that may be broken off at any turn.
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1)),
        st.tuples(st.just("cancel"), st.integers(0, 2)),
        st.tuples(st.just("turns"), st.integers(1, 12)),
    ),
    min_size=2,
    max_size=10,
)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=_STEPS, count=st.sampled_from([1, 10]))
@pytest.mark.slow
def test_a_receive_that_is_broken_off_loses_nothing(
    steps: list[tuple[str, int]], count: int
) -> None:
    asyncio.run(_broken_off(steps, count))


async def _broken_off(steps: list[tuple[str, int]], count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with on_nodes(Path(folder) / "nodes", 1, 2) as cluster:
            queue = await cluster.topic(led_by=(1, 2))
            routed = cluster.routed(1)
            request = LeaseRequest(count=count, lease_ms=3_600_000, wait_ms=20_000)
            waiting = [asyncio.create_task(routed.call(Lease(queue, request))) for _ in range(3)]
            await wait_for(cluster, queue, {1: 3, 2: 3})
            sent: list[str] = []
            sending: list[asyncio.Task[object]] = []
            for verb, number in steps:
                if verb == "send":
                    sent.append(str(len(sent)))
                    sending.append(
                        asyncio.create_task(cluster.put(queue, number, [message(sent[-1])]))
                    )
                elif verb == "cancel":
                    waiting[number].cancel()
                else:
                    for _ in range(number):
                        await asyncio.sleep(0)
            await asyncio.gather(*sending)
            routed.end_waits()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            got = [
                each
                for deliveries in ended
                if not isinstance(deliveries, BaseException)
                for each in deliveries
            ]
            for each in got:
                await routed.call(Ack(queue, each.partition, [claim(each)]))
            # No lease runs out here: the clock stands still.
            await until(lambda: sum(node.in_flight(queue) for node in cluster.nodes.values()) == 0)
            assert sorted([*bodies(got), *await drain(routed, queue)]) == sorted(sent)
