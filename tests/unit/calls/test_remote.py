"""A broker behind a socket: what becomes of leases whose answer nobody reads, of calls that come
too late, and of listeners whose node goes away. What every call means is in test_remote_ports."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.partition.test_stream import batch
from tests.unit.broker.stage import bodies, claim, message
from tests.unit.calls.routing_kit import Cluster, on_nodes, until

from penstock.model import errors
from penstock.model.calls import Acquire, Append, AppendBatches, Extend, Lease, OpenShare, Prolong
from penstock.model.errors import PenstockError
from penstock.model.message import Claim, Delivery
from penstock.model.ports import EARLIEST, LeaseRequest
from penstock.model.topic import Kind
from penstock.wire.internal import broker_calls as wire
from penstock.wire.internal.calls import encode
from penstock.wire.internal.faults import DeadlineExceeded, OutcomeUnknown

SOON_S = 10.0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with on_nodes(tmp_path, 1) as cluster:
        yield cluster


# ── Leases whose answer nobody reads ─────────────────────────────────────────────────────────


async def test_a_long_poll_that_is_broken_off_waits_there_no_more(cluster: Cluster) -> None:
    queue = await cluster.topic()
    remote, node = cluster.remote(1), cluster.nodes[1]
    waiting = asyncio.create_task(remote.call(Lease(queue, LeaseRequest(wait_ms=20_000))))
    await until(lambda: node.waits(queue) == 1)
    waiting.cancel()
    await until(lambda: node.waits(queue) == 0)
    await remote.call(Append(queue, 0, [message("a")]))
    assert bodies(await remote.call(Lease(queue, LeaseRequest()))) == ["a"]


async def test_what_was_taken_for_a_receive_that_was_broken_off_is_given_back(
    cluster: Cluster,
) -> None:
    """At whatever turn: before it is sent, while it is done, and when the answer is on its way."""
    queue = await cluster.topic()
    remote, node = cluster.remote(1), cluster.nodes[1]
    await remote.call(Append(queue, 0, [message("a")]))
    broken_off = 0
    for turns in range(40):
        receiving = asyncio.create_task(remote.call(Lease(queue, LeaseRequest())))
        for _ in range(turns):
            await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.wait((receiving,))
        if receiving.cancelled():
            broken_off += 1
        else:
            await remote.call(Extend(queue, 0, [(claim(each), 0) for each in receiving.result()]))
        async with asyncio.timeout(SOON_S):
            await until(lambda: not remote._giving_back and node.in_flight(queue) == 0)
    assert broken_off > 5


async def test_what_a_lost_answer_carried_is_given_back_over_the_next_connection(
    cluster: Cluster,
) -> None:
    queue = await cluster.topic()
    remote, node = cluster.remote(1), cluster.nodes[1]
    await remote.call(Append(queue, 0, [message("a")]))
    remember, taken = node.service._remember, asyncio.Event()

    def remembered(ticket: tuple[int, int], claims: Sequence[Claim]) -> None:
        remember(ticket, claims)
        taken.set()
        assert node.listener is not None
        for connection in tuple(node.listener.connections):
            connection.abort()  # just before the answer is written

    node.service._remember = remembered  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await remote.call(Lease(queue, LeaseRequest()))
    assert taken.is_set()
    node.service._remember = remember  # type: ignore[method-assign]
    async with asyncio.timeout(SOON_S):
        await until(lambda: node.in_flight(queue) == 0)
        assert bodies(await remote.call(Lease(queue, LeaseRequest()))) == ["a"]


async def test_what_was_acquired_for_a_call_that_was_broken_off_is_given_back(
    cluster: Cluster,
) -> None:
    """At whatever turn, as for receives: else the group would wait for the lease to run out."""
    stream = await cluster.topic("s", kind=Kind.STREAM)
    remote, node = cluster.remote(1), cluster.nodes[1]
    share = await remote.call(OpenShare(stream, 0, "g", start=EARLIEST))
    await remote.call(AppendBatches(stream, 0, acks=-1, batches=[batch("a", "b")]))
    broken_off = 0
    for turns in range(30):
        acquiring = asyncio.create_task(
            remote.call(Acquire(share, 0, count=10, bytes_max=1_000_000, lease_ms=30_000))
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        acquiring.cancel()
        await asyncio.wait((acquiring,))
        if acquiring.cancelled():
            broken_off += 1
        else:
            claims = [Claim(0, pick[0], pick[1]) for pick in acquiring.result().picks]
            await remote.call(Prolong(share, 0, [(claim, 0) for claim in claims]))
        async with asyncio.timeout(SOON_S):
            await until(lambda: not remote._giving_back and node.in_flight(share) == 0)
    assert broken_off > 5


async def test_a_lease_that_takes_too_long_is_given_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await cluster.topic()
    remote, node = cluster.remote(1), cluster.nodes[1]
    await remote.call(Append(queue, 0, [message("a")]))
    is_slow = True

    async def slow(call: Lease) -> Sequence[Delivery]:
        deliveries = await node.broker.call(call)
        if is_slow:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass  # the deadline has passed on both sides, and yet it is answered
        return deliveries

    node.owned.instead[Lease] = slow
    with monkeypatch.context() as hasty:
        hasty.setitem(cast(Any, wire.RULES), Lease, wire.Rule(number=0x0201, call_ms=100))
        with pytest.raises(DeadlineExceeded):
            await remote.call(Lease(queue, LeaseRequest()))
    is_slow = False
    async with asyncio.timeout(SOON_S):
        await until(lambda: node.in_flight(queue) == 0)
        assert bodies(await remote.call(Lease(queue, LeaseRequest()))) == ["a"]


async def test_a_long_poll_may_take_longer_than_other_calls(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await cluster.topic()
    remote = cluster.remote(1)
    monkeypatch.setitem(cast(Any, wire.RULES), Lease, wire.Rule(number=0x0201, call_ms=50))
    waiting = asyncio.create_task(remote.call(Lease(queue, LeaseRequest(wait_ms=20_000))))
    await until(lambda: cluster.nodes[1].waits(queue) == 1)
    done, _ = await asyncio.wait((waiting,), timeout=0.3)
    assert not done
    await cluster.remote(1).call(Append(queue, 0, [message("a")]))
    assert bodies(await waiting) == ["a"]


async def test_long_polls_with_a_way_of_their_own_leave_room_for_the_rest(
    cluster: Cluster,
) -> None:
    queue = await cluster.topic()
    parked = cluster.client(1, "parked")
    remote = cluster.remote(1, parked=lambda: parked)
    node = cluster.nodes[1]
    count = 1_100  # more than one connection takes at once
    long = LeaseRequest(wait_ms=20_000)
    waiting = [asyncio.create_task(remote.call(Lease(queue, long))) for _ in range(count)]
    await until(lambda: node.waits(queue) == 1_024)
    async with asyncio.timeout(SOON_S):
        await remote.call(Append(queue, 0, [message("a")]))
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    await until(lambda: node.waits(queue) == 0)


# ── Listeners ────────────────────────────────────────────────────────────────────────────────


async def test_a_listener_outlives_a_lost_connection(cluster: Cluster) -> None:
    stream = await cluster.topic("s", kind=Kind.STREAM)
    remote, node = cluster.remote(1), cluster.nodes[1]
    heard = asyncio.Event()
    end = remote.on_advance(stream, 0, heard.set)
    async with asyncio.timeout(10):
        await heard.wait()
        heard.clear()
        await node.vanish()
        await heard.wait()  # to look, and to find that nobody answers
        await node.listen()
        await node.broker.call(AppendBatches(stream, 0, acks=-1, batches=[batch("a")]))
        heard.clear()
        await heard.wait()
    end()
    await until(lambda: not remote._ends._topics)


async def test_listeners_on_one_topic_share_one_question(cluster: Cluster) -> None:
    stream = await cluster.topic("s", led_by=(1, 1, 1), kind=Kind.STREAM)
    remote, node = cluster.remote(1), cluster.nodes[1]
    heard = [asyncio.Event() for _ in range(6)]
    ends = [remote.on_advance(stream, n % 3, event.set) for n, event in enumerate(heard)]
    async with asyncio.timeout(SOON_S):
        await asyncio.gather(*(event.wait() for event in heard))
        assert len(remote._ends._topics) == 1
        for event in heard:
            event.clear()
        await node.broker.call(AppendBatches(stream, 1, acks=-1, batches=[batch("a")]))
        await asyncio.gather(heard[1].wait(), heard[4].wait())
    assert not heard[0].is_set()
    for end in ends:
        end()
    await until(lambda: not remote._ends._topics)


# ── Errors ───────────────────────────────────────────────────────────────────────────────────

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_ERRORS = st.one_of(
    st.builds(errors.MissingParameter, _TEXT),
    st.builds(errors.InvalidMessage, _TEXT),
    st.builds(errors.ExpiredReceipt, _TEXT),
    st.builds(errors.NotLeased, _TEXT),
    st.builds(
        errors.OffsetOutOfRange, st.integers(-1, 2**62), st.integers(0, 99), st.integers(0, 99)
    ),
    st.builds(errors.ProducerRefused, st.integers(0, 200), _TEXT),
    st.builds(errors.TopicNotFound, _TEXT),
    st.builds(errors.PurgeInProgress, _TEXT),
    st.builds(errors.Throttled, _TEXT, retry_after_ms=st.integers(0, 9_999)),
    st.builds(errors.InFlightLimit, _TEXT),
    st.builds(errors.DiskFull, _TEXT),
    st.builds(errors.NotLeader, _TEXT, leader=st.integers(-1, 99), epoch=st.integers(-1, 2**40)),
    st.builds(errors.NotEnoughReplicas, _TEXT),
    st.builds(errors.Damaged, _TEXT, st.integers(0, 2**40), _TEXT),
)


@settings(max_examples=100)
@given(st.lists(st.none() | _ERRORS, max_size=10))
def test_results_of_claims_survive_the_wire_exactly(
    results: list[PenstockError | None],
) -> None:
    form = wire.wire_of(Extend)
    found = form.decode_reply(encode(form.reply_of(results)))
    assert len(found) == len(results)
    for one, other in zip(found, results, strict=True):
        assert type(one) is type(other)
        assert str(one) == str(other)
        if one is not None and other is not None:
            assert vars(one) == vars(other)
