"""Replication over real sockets and real files: what is answered is on the in-sync nodes."""

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest
from tests.unit.broker.replicas.stage import cluster, message, settles, until

from penstock.membership.registration import FILE_NAME as REGISTERED_AT
from penstock.membership.registration import Membership, StoreSetBack
from penstock.model.calls import Ack, Append, Lease
from penstock.model.errors import NotEnoughReplicas, NotLeader, Overloaded
from penstock.model.message import Claim
from penstock.model.ports import LeaseRequest
from penstock.model.topic import Fsync
from penstock.replication.replica import Role
from penstock.replication.row import Change
from penstock.wire.internal.calls import CallerInfo
from penstock.wire.internal.faults import Unreachable
from penstock.wire.internal.node_calls import (
    PartitionFetch,
    ReplicaFetch,
    ReplicaFetched,
    ReplyKind,
)


@pytest.mark.parametrize("fsync", [Fsync.ALWAYS, Fsync.NEVER])
async def test_what_is_answered_is_on_every_node_of_the_in_sync_set(
    tmp_path: Path, fsync: Fsync
) -> None:
    async with cluster(tmp_path, fsync=fsync) as on:
        topic, key = await on.topic()
        for number in range(20):
            await settles(on.sent(1, topic, f"message {number}"))
            ends = [node.replica(key).log.end_offset for node in on.nodes.values()]
            assert min(ends) >= number + 1
        await on.alike(key)
        assert on.row(key).in_sync == {1, 2, 3}


async def test_a_new_leader_has_all_that_was_answered_and_the_old_one_says_so(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        await settles(on.sent(1, topic, "one", "two"))
        await on.elect(key, 2)
        await until(lambda: on.nodes[1].replica(key).replica.leader is None)
        with pytest.raises(NotLeader):
            await settles(on.sent(1, topic, "three"))
        await settles(on.sent(2, topic, "three"))
        found = await settles(on.nodes[2].broker.call(Lease(topic, LeaseRequest(count=10))))
        bodies = [one.record.message.body for one in found]  # type: ignore[attr-defined]
        assert bodies == [b"one", b"two", b"three"]
        await on.alike(key)


async def test_a_delete_that_was_answered_is_known_to_the_next_leader(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        await settles(on.sent(1, topic, "one", "two"))
        first = on.nodes[1].broker
        taken = await first.call(Lease(topic, LeaseRequest(count=1)))
        claim = Claim(0, taken[0].record.offset, taken[0].lease_seq)
        assert list(await first.call(Ack(topic, 0, [claim]))) == [None]
        await on.elect(key, 3)
        third = on.nodes[3].broker
        found = await settles(third.call(Lease(topic, LeaseRequest(count=10))))
        assert [one.record.message.body for one in found] == [b"two"]  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_a_follower_that_is_cut_off_leaves_the_set_and_comes_back(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        on.nodes[3].is_cut = True
        waiting = asyncio.ensure_future(on.sent(1, topic, "while it is away"))
        await until(lambda: on.row(key).in_sync == {1, 2})
        await settles(waiting)
        on.nodes[3].is_cut = False
        await until(lambda: on.row(key).in_sync == {1, 2, 3})
        await on.alike(key)


async def test_without_enough_replicas_nothing_is_taken(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, _ = await on.topic()
        await on.nodes[2].kill()
        await on.nodes[3].kill()
        await until(lambda: len(on.nodes[1].view.nodes) == 1)
        with pytest.raises(NotEnoughReplicas):
            await settles(on.sent(1, topic, "to nobody"))


async def test_a_killed_leader_comes_back_and_gives_up_what_nobody_else_has(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        await settles(on.sent(1, topic, "kept"))
        on.nodes[2].is_cut = on.nodes[3].is_cut = True
        await asyncio.sleep(0)
        # Calls that were under way may still bring it one answer: send until it stays alone.
        alone = [asyncio.ensure_future(on.sent(1, topic, f"lost {n}")) for n in range(3)]
        await until(lambda: on.nodes[1].replica(key).log.end_offset >= 4)
        await on.nodes[1].kill()
        for one in alone:
            with pytest.raises(Overloaded):
                await settles(one)
        on.nodes[2].is_cut = on.nodes[3].is_cut = False
        await on.elect(key, 2)
        await settles(on.sent(2, topic, "after"))
        await on.nodes[1].start()
        await until(lambda: on.row(key).in_sync == {1, 2, 3})
        await on.alike(key)
        found = await on.nodes[2].broker.call(Lease(topic, LeaseRequest(count=10)))
        bodies = [one.record.message.body for one in found]
        assert bodies[0] == b"kept"
        assert bodies[-1] == b"after"


async def test_a_wiped_node_declares_its_loss_and_is_filled_again(tmp_path: Path) -> None:
    import shutil

    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        await settles(on.sent(1, topic, *(f"m{n}" for n in range(10))))
        await on.nodes[3].kill()
        shutil.rmtree(on.nodes[3].folder)
        await on.nodes[3].start()
        await until(lambda: on.row(key).in_sync == {1, 2, 3} and not on.row(key).lost)
        await on.alike(key)


async def test_an_asynchronous_topic_answers_before_the_others_have_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic(configs={"penstock.replication": "async"})
        on.nodes[2].is_cut = on.nodes[3].is_cut = True
        await until(lambda: not on.nodes[1].replica(key)._waiting_fetches)
        await settles(on.sent(1, topic, "answered by one"))
        assert await on.nodes[1].broker.call(Lease(topic, LeaseRequest())) == []
        on.nodes[2].is_cut = on.nodes[3].is_cut = False
        found = await settles(on.nodes[1].broker.call(Lease(topic, LeaseRequest(wait_ms=8_000))))
        assert [one.record.message.body for one in found] == [b"answered by one"]  # type: ignore[attr-defined]


async def test_a_node_taken_for_dead_registers_again_and_follows(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        await settles(on.sent(1, topic, "one"))
        first = on.nodes[1].membership
        before = first.incarnation
        await on.store.revoke(first.lease)
        await until(lambda: first.incarnation not in (0, before))
        with pytest.raises(NotLeader):  # it was elected in another life
            await settles(on.sent(1, topic, "by nobody"))
        await on.elect(key, 2)
        await settles(on.sent(2, topic, "two"))
        await until(lambda: on.row(key).in_sync == {1, 2, 3})
        await on.alike(key)
        with pytest.raises(NotLeader):
            await settles(on.nodes[1].broker.call(Append(topic, 0, [message("three")])))


@pytest.mark.parametrize("what", ["the store does not answer", "the lease ends again"])
async def test_a_node_that_registers_again_is_disturbed_before_it_has_seen_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async with cluster(tmp_path) as on:
        topic, key = await on.topic()
        first = on.nodes[1]
        before, refresh, incarnations = first.membership.incarnation, first.view.refresh_rows, []

        async def disturbed() -> None:
            incarnations.append(first.membership.incarnation)
            if len(incarnations) == 1 and what == "the lease ends again":
                await on.store.revoke(first.membership.lease)
                await until(lambda: not first.membership.lease)
            elif len(incarnations) == 1:
                raise Unreachable("etcd does not answer.")
            await refresh()

        monkeypatch.setattr(first.view, "refresh_rows", disturbed)
        await on.store.revoke(first.membership.lease)
        await until(lambda: len(incarnations) == 2 and first.replicators._registering_again is None)
        assert before not in incarnations
        is_new = len(set(incarnations)) == 2
        assert is_new == (what == "the lease ends again")
        assert first.membership.is_good
        await on.elect(key, 2)
        await settles(on.sent(2, topic, "two"))
        await until(lambda: on.row(key).in_sync == {1, 2, 3})


async def test_an_asynchronous_topic_is_not_answered_by_a_node_that_may_be_taken_for_dead(
    tmp_path: Path,
) -> None:
    """R20: what it has taken before, and synced after its deadline, it does not answer alone."""
    async with cluster(tmp_path) as on:
        topic, key = await on.topic(configs={"penstock.replication": "async"})
        first = on.nodes[1]
        on.nodes[2].is_cut = on.nodes[3].is_cut = True
        await until(lambda: not first.replica(key)._waiting_fetches)
        disk_works = threading.Event()
        for _ in range(2):  # of two threads
            first.pool.submit(disk_works.wait)
        alone = asyncio.ensure_future(on.sent(1, topic, "answered by nobody"))
        await until(lambda: first.replica(key).log.end_offset == 1)
        keeping = first.membership._task
        assert keeping is not None
        keeping.cancel()
        await asyncio.wait((keeping,))
        first.membership.deadline_ms = 0  # its time is over
        assert not first.membership.is_good
        leading = first.replica(key).leadership
        disk_works.set()
        await until(lambda: first.replica(key).log.durable_offset == 1)
        assert leading is not None
        assert not alone.done(), "nobody else has it"
        on.nodes[2].is_cut = on.nodes[3].is_cut = False
        await asyncio.gather(alone, return_exceptions=True)


async def test_a_replica_that_is_dropped_is_told_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as on:
        _, key = await on.topic(in_sync_min=1)
        first, third = on.nodes[1], on.nodes[3]
        await until(lambda: third.replica(key).replica.role is Role.FOLLOWER)
        third.is_cut = True  # its own questions are not in the way of this one
        asked = ReplicaFetch(
            3,
            third.membership.incarnation,
            60_000,
            1_000,
            [PartitionFetch(key.topic_id, key.index, 1, 0, 0, -1, 1, 0, 0)],
        )
        answers = first.replicators._server
        waiting = asyncio.ensure_future(
            answers.fetch(asked, CallerInfo("3", 60_000))  # longer than anybody would wait
        )
        await until(lambda: len(first.replica(key)._waiting_fetches) > 0)
        await first.view.refresh_rows()
        view = first.view.rows[key]
        row = msgspec.structs.replace(view.row, replicas=(1, 2), in_sync=frozenset({1, 2}))
        await first.view.propose(key, Change(view.version, row))
        told = await settles(waiting)
        assert isinstance(told, ReplicaFetched)
        assert [one.kind for one in told.replies] == [ReplyKind.NOT_YET]


async def test_a_node_stops_also_in_the_turn_in_which_in_sync_sets_are_looked_at(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as on:
        await on.topic()
        for turns, node in enumerate(on.nodes.values()):
            node.replicators.check_in_sync_soon()
            for _ in range(turns):
                await asyncio.sleep(0)
            await settles(node.replicators.stop())
            await node._close()


@pytest.mark.parametrize("is_restarted", [True, False])
async def test_a_row_seen_just_after_the_node_registered_is_told_to_its_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    """The last change in the store is that of a row, and the view has it before the replicas that
    it is about have come to be: there will be no news of it."""
    async with cluster(tmp_path) as on:
        _, key = await on.topic()
        third, register = on.nodes[3], Membership.register

        async def and_then_a_change(membership: Membership) -> int:
            await until(lambda: on.row(key).in_sync == {1, 2})
            made = await register(membership)
            seen = on.nodes[1].view.rows[key]
            await on.nodes[1].view.propose(key, Change(seen.version, seen.row))
            await until(lambda: third.view.rows[key].version > seen.version)
            return made

        monkeypatch.setattr(Membership, "register", and_then_a_change)
        if is_restarted:
            await third.kill()
            await third.start()
        else:
            await on.store.revoke(third.membership.lease)
            await until(lambda: on.row(key).in_sync == {1, 2})
        await until(lambda: on.row(key).in_sync == {1, 2, 3})


async def test_a_node_does_not_enter_a_cluster_whose_store_was_set_back(tmp_path: Path) -> None:
    async with cluster(tmp_path, nodes=2) as on:
        second = on.nodes[2]
        remembered = second.folder / REGISTERED_AT
        assert remembered.read_text() == f"{second.membership.incarnation}\n"
        await second.kill()
        remembered.write_text("1000000\n")
        with pytest.raises(StoreSetBack, match="node registered at 1000000"):
            await second.start()
        await second._close()
        assert 2 not in on.nodes[1].view.nodes
        remembered.unlink()  # as the message says, if that is what is wanted
        await second.start()
        assert remembered.read_text() == f"{second.membership.incarnation}\n"
