"""ShareFetch and ShareAcknowledge as bytes in and out, over a real broker."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.unit.frontend.memory import MemoryIdentities
from tests.unit.frontend_kafka_shares.stage import only, shares, values

from penstock.frontend.kafka.sessions.share_sessions import ShareSessions
from penstock.frontend.limits.quotas import WAIT_RETRY_MS, TenantQuotas
from penstock.model.identity import Quotas, Tenant
from penstock.model.limits import KAFKA_PARTITIONS_MAX
from penstock.wire.kafka.faults import ErrorCode

ACCEPT, RELEASE, REJECT, RENEW = (1,), (2,), (3,), (4,)


async def until(condition: object) -> None:
    async with asyncio.timeout(10):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.001)


# ── Leases ───────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("version", [1, 2])
async def test_each_record_goes_to_one_member(tmp_path: Path, version: int) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        one, two = await rig.joined("t", name="one"), await rig.joined("t", name="two")
        await rig.send(topic, b"a", b"b", b"c")
        first = await one.fetch(topic, max_records=2, version=version)
        assert (rig.acquired(first), values(first)) == ([(0, 1, 1)], [b"a", b"b"])
        second = await two.fetch(topic, version=version)
        assert (rig.acquired(second), values(second)) == ([(2, 2, 1)], [b"c"])
        assert rig.acquired(await one.fetch(version=version)) == []
        assert rig.meter.received_count == 3


@pytest.mark.parametrize("version", [1, 2])
async def test_what_is_accepted_or_rejected_never_comes_again(tmp_path: Path, version: int) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        await rig.send(topic, b"a", b"b", b"c")
        await member.fetch(topic, version=version)
        done = await member.acknowledge(topic, [(0, 0, ACCEPT), (1, 1, REJECT)], version=version)
        ((partition,),) = (each.partitions for each in done.responses)
        assert (done.error_code, partition.error_code) == (0, 0)
        assert done.acquisition_lock_timeout_ms == (30_000 if version == 2 else 0)
        rig.hand.advance(31_000)
        assert rig.acquired(await member.fetch(version=version)) == [(2, 2, 2)]


async def test_what_is_released_comes_again_at_once_and_counts(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        one, two = await rig.joined("t", name="one"), await rig.joined("t", name="two")
        await rig.send(topic, b"a", b"b")
        await one.fetch(topic)
        found = await one.fetch(topic, acks=[(0, 1, (1, 2))], max_records=0)
        assert only(found).acknowledge_error_code == 0
        assert rig.acquired(await two.fetch(topic)) == [(1, 1, 2)]


async def test_a_lease_that_ends_gives_the_record_to_another(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        one, two = await rig.joined("t", name="one"), await rig.joined("t", name="two")
        await rig.send(topic, b"a")
        await one.fetch(topic)
        rig.hand.advance(29_000)
        assert rig.acquired(await two.fetch(topic)) == []
        rig.hand.advance(1_001)
        assert rig.acquired(await two.fetch()) == [(0, 0, 2)]
        late = await one.acknowledge(topic, [(0, 0, ACCEPT)])
        ((partition,),) = (each.partitions for each in late.responses)
        assert partition.error_code == ErrorCode.INVALID_RECORD_STATE
        done = await two.acknowledge(topic, [(0, 0, ACCEPT)])
        ((partition,),) = (each.partitions for each in done.responses)
        assert partition.error_code == 0


async def test_a_renewed_lease_goes_on(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        one, two = await rig.joined("t", name="one"), await rig.joined("t", name="two")
        await rig.send(topic, b"a", b"b")
        await one.fetch(topic)
        rig.hand.advance(20_000)
        refused = await one.acknowledge(topic, [(0, 0, RENEW)])
        ((partition,),) = (each.partitions for each in refused.responses)
        assert partition.error_code == ErrorCode.INVALID_REQUEST, "it does not say that it renews"
        found = await one.fetch(topic, acks=[(0, 0, RENEW)], is_renew_ack=True)
        assert only(found).acknowledge_error_code == 0
        rig.hand.advance(20_000)
        assert rig.acquired(await two.fetch(topic)) == [(1, 1, 2)]
        done = await one.acknowledge(topic, [(0, 0, ACCEPT)])
        ((partition,),) = (each.partitions for each in done.responses)
        assert partition.error_code == 0


async def test_a_record_delivered_five_times_is_finished_with(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        await rig.send(topic, b"a", b"b")
        assert rig.acquired(await member.fetch(topic, max_records=1)) == [(0, 0, 1)]
        for count in range(2, 6):
            found = await member.fetch(topic, acks=[(0, 0, RELEASE)], max_records=1)
            assert rig.acquired(found) == [(0, 0, count)]
        found = await member.fetch(topic, acks=[(0, 0, RELEASE)], max_records=1)
        assert rig.acquired(found) == [(1, 1, 1)]


async def test_all_or_none_of_a_partition_is_acknowledged(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        await rig.send(topic, b"a", b"b")
        await member.fetch(topic, max_records=1)
        refused = await member.acknowledge(topic, [(0, 0, ACCEPT), (1, 1, ACCEPT)])
        ((partition,),) = (each.partitions for each in refused.responses)
        assert partition.error_code == ErrorCode.INVALID_RECORD_STATE
        assert partition.error_message
        done = await member.acknowledge(topic, [(0, 0, ACCEPT)])
        ((partition,),) = (each.partitions for each in done.responses)
        assert partition.error_code == 0


# ── How much ─────────────────────────────────────────────────────────────────────────────────
async def test_bounds_hold_over_all_partitions(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream(partitions=3)
        member = await rig.joined("t")
        for partition in range(3):
            await rig.send(topic, *[b"x" * 100] * 10, partition=partition)
        found = await member.fetch(topic, range(3), max_records=15)
        counts = [
            a.last_offset - a.first_offset + 1
            for each in found.responses
            for one in each.partitions
            for a in one.acquired_records
        ]
        assert sum(counts) == 15
        other = await rig.joined("t", name="other")
        found = await other.fetch(topic, range(3), max_bytes=1)
        assert sum(len(each.partitions) for each in found.responses) == 1, "one, whatever its size"


async def test_ranges_are_no_longer_than_the_batch_size(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        await rig.send(topic, *[b"x"] * 5)
        found = await member.fetch(topic, batch_size=2)
        assert rig.acquired(found) == [(0, 1, 1), (2, 3, 1), (4, 4, 1)]


# ── Waiting ──────────────────────────────────────────────────────────────────────────────────
async def test_a_fetch_waits_for_records_and_not_longer(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        waiting = asyncio.create_task(member.fetch(topic, max_wait_ms=30_000))
        await until(lambda: len(rig.context.parked))
        await rig.send(topic, b"a")
        assert values(await asyncio.wait_for(waiting, 10)) == [b"a"]


async def test_a_fetch_that_waits_is_a_long_poll_of_its_tenant(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        identities = MemoryIdentities()
        identities.enter(Tenant(topic.account, "node", 0, quotas=Quotas(waits_max=1)))
        quotas = rig.context.quotas = TenantQuotas(identities, rig.stage.catalog)
        one, two = await rig.joined("t", name="one"), await rig.joined("t", name="two")
        waiting = asyncio.create_task(one.fetch(topic, max_wait_ms=30_000))
        await until(lambda: len(rig.context.parked))
        found = await asyncio.wait_for(two.fetch(topic, max_wait_ms=30_000), 10)
        assert (rig.acquired(found), found.throttle_time_ms) == ([], WAIT_RETRY_MS)
        assert two.connection._pause is not None, "or it would ask again at once"
        await rig.send(topic, b"a")
        assert rig.acquired(await waiting) == [(0, 0, 1)]
        assert quotas._waits == {}


async def test_a_fetch_waits_for_what_others_release(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        one, two = await rig.joined("t", name="one"), await rig.joined("t", name="two")
        await rig.send(topic, b"a")
        await one.fetch(topic)
        waiting = asyncio.create_task(two.fetch(topic, max_wait_ms=30_000))
        await until(lambda: len(rig.context.parked))
        await one.acknowledge(topic, [(0, 0, RELEASE)])
        assert rig.acquired(await asyncio.wait_for(waiting, 10)) == [(0, 0, 2)]


async def test_a_fetch_is_answered_when_its_time_is_up_or_the_node_drains(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        assert rig.acquired(await member.fetch(topic, max_wait_ms=20)) == []
        waiting = asyncio.create_task(member.fetch(max_wait_ms=30_000))
        await until(lambda: len(rig.context.parked))
        rig.frontend.drain()
        assert rig.acquired(await asyncio.wait_for(waiting, 10)) == []
        assert rig.acquired(await asyncio.wait_for(member.fetch(max_wait_ms=30_000), 10)) == []


# ── Sessions ─────────────────────────────────────────────────────────────────────────────────
async def test_epochs_are_checked(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        assert (await member.fetch(epoch=1)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        refused = await member.acknowledge(topic, [], epoch=1)
        assert refused.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        refused = await member.acknowledge(topic, [], epoch=0)
        assert refused.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        opening = await member.fetch(topic, acks=[(0, 0, ACCEPT)])
        assert opening.error_code == ErrorCode.INVALID_REQUEST
        await member.fetch(topic)
        assert (await member.fetch(epoch=7)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert (await member.fetch()).error_code == 0
        nameless = rig.member("")
        assert (await nameless.fetch(topic)).error_code == ErrorCode.INVALID_REQUEST


async def test_partitions_are_added_and_forgotten(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream(partitions=2)
        member = await rig.joined("t")
        await rig.send(topic, b"a", partition=1)
        assert rig.acquired(await member.fetch(topic, [0])) == []
        assert rig.acquired(await member.fetch(topic, [1], max_records=0)) == []
        assert rig.acquired(await member.fetch(topic, [], forget=[1])) == []
        assert only(await member.fetch(topic, [1])).partition_index == 1


async def test_more_sessions_than_allowed_are_refused(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        rig.context.share_sessions = ShareSessions(sessions_max=1)
        topic = await rig.stream()
        one, two = await rig.joined("t", name="one"), await rig.joined("t", name="two")
        await one.fetch(topic)
        refused = await two.fetch(topic)
        assert refused.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        await one.fetch(epoch=-1)
        assert (await two.fetch(topic)).error_code == 0


@pytest.mark.parametrize("how", ["fetch", "acknowledge", "lost", "anew"])
async def test_what_a_member_holds_is_released_when_its_session_ends(
    tmp_path: Path, how: str
) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        one, two = await rig.joined("t", name="one"), await rig.joined("t", name="two")
        await rig.send(topic, b"a", b"b")
        await one.fetch(topic)
        if how == "fetch":
            found = await one.fetch(topic, acks=[(0, 0, ACCEPT)], epoch=-1)
            assert only(found).acknowledge_error_code == 0
        elif how == "acknowledge":
            await one.acknowledge(topic, [(0, 0, ACCEPT)], epoch=-1)
        elif how == "lost":
            await one.acknowledge(topic, [(0, 0, ACCEPT)])
            for listener in one.connection.on_lost:
                listener()
            await until(lambda: not rig.context.share_releases)
        else:
            await one.acknowledge(topic, [(0, 0, ACCEPT)])
            await one.fetch(epoch=0)
        assert rig.acquired(await two.fetch(topic)) == [(1, 1, 2)]
        assert len(rig.context.share_sessions) == (2 if how == "anew" else 1)


async def test_who_has_left_the_group_may_still_acknowledge(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        one, two = await rig.joined("t", name="one"), await rig.joined("t", name="two")
        await rig.send(topic, b"a", b"b")
        await one.fetch(topic)
        await one.beat(epoch=-1)
        assert rig.acquired(await two.fetch(topic)) == []
        done = await one.acknowledge(topic, [(0, 0, ACCEPT)], epoch=-1)
        ((partition,),) = (each.partitions for each in done.responses)
        assert partition.error_code == 0
        assert rig.acquired(await two.fetch()) == [(1, 1, 2)]


async def test_a_session_that_ends_while_it_waits_gets_nothing(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        one = await rig.joined("t")
        again = rig.member()
        waiting = asyncio.create_task(one.fetch(topic, max_wait_ms=30_000))
        await until(lambda: len(rig.context.parked))
        assert rig.acquired(await again.fetch(topic)) == []
        await rig.send(topic, b"a")
        rig.frontend.drain()
        gone = await asyncio.wait_for(waiting, 10)
        assert gone.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert rig.acquired(await again.fetch()) == [(0, 0, 1)]


# ── What is not there ────────────────────────────────────────────────────────────────────────
async def test_who_is_in_no_group_finds_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        stranger = rig.member("stranger", "nobody")
        found = only(await stranger.fetch(topic))
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert rig.context.anywhere.find_share(topic, "nobody") is None


async def test_unknown_topics_and_partitions_are_told(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        found = only(await member.fetch(topic, [5]))
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await rig.context.catalog.delete(topic.account, topic.region, "t", now_ms=0)
        member.session_epoch = 0
        found = only(await member.fetch(topic))
        assert (found.error_code, bool(found.error_message)) == (ErrorCode.UNKNOWN_TOPIC_ID, True)


async def test_a_topic_that_grows_is_read_in_its_new_partition(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        await member.fetch(topic)

        grown = await rig.stage.catalog.change(
            topic.account, topic.region, "t", lambda found: replace(found, partition_count=2)
        )
        found = await member.beat()
        assert found.assignment is not None
        await rig.send(grown, b"a", partition=1)
        assert values(await member.fetch(grown, [1])) == [b"a"]


async def test_a_request_of_too_many_partitions_is_rejected(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        reply = await rig.member().fetch(topic, range(KAFKA_PARTITIONS_MAX + 1))
        assert reply.error_code == ErrorCode.INVALID_REQUEST


# ── Over a restart ───────────────────────────────────────────────────────────────────────────
async def test_a_restart_keeps_what_a_group_has_finished_with(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        clock = rig.hand
        topic = await rig.stream()
        member = await rig.joined("t")
        await rig.send(topic, b"a", b"b", b"c")
        await member.fetch(topic)
        await member.acknowledge(topic, [(1, 1, ACCEPT)])
        base = rig.base
    async with shares(tmp_path, clock) as rig:
        again = rig.member()
        assert (await again.beat(epoch=1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        again = await rig.joined("t")
        rig.base = base
        clock.advance(31_000)
        assert rig.acquired(await again.fetch(topic)) == [(0, 0, 2), (2, 2, 2)]
