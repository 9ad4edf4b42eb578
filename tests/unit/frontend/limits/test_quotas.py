"""How much a tenant may have, over a real catalog and a real broker."""

import asyncio
import secrets
from pathlib import Path

import pytest
from tests.unit.broker.stage import Stage, on_stage
from tests.unit.calls.routing_kit import on_nodes
from tests.unit.frontend.memory import MemoryCatalog, MemoryIdentities

from penstock.calls.callees import Callees, GuardedBroker
from penstock.frontend.limited_calls import GuardedCatalog, LimitedBroker
from penstock.frontend.limits.quotas import TenantQuotas
from penstock.model.calls import Append, AppendBatches, BrokerPort, Lease, OpenShare
from penstock.model.errors import QuotaExceeded, Throttled, TopicNotFound
from penstock.model.identity import Quotas, Tenant
from penstock.model.message import Message
from penstock.model.ports import LATEST, LeaseRequest
from penstock.model.topic import Kind, Topic

NODE = "000000000000"  # whose topics the stage makes
OTHER = "999999999999"


def limited(broker: BrokerPort, callees: Callees, quotas: TenantQuotas) -> LimitedBroker:
    """Return a broker as the frontends of node n call it."""
    guarded = GuardedBroker(broker, callees.backend("n"), callees.metadata)
    return LimitedBroker(guarded, callees.metadata, quotas)


class World:
    def __init__(self, stage: Stage, **quotas: int) -> None:
        self.stage = stage
        self.identities = MemoryIdentities()
        self.limit(**quotas)
        self.quotas = TenantQuotas(self.identities, stage.catalog)
        callees = Callees(stage.clock)
        self.catalog = GuardedCatalog(stage.catalog, callees.metadata, self.quotas)
        self.backend = limited(stage.broker, callees, self.quotas)

    def limit(self, **quotas: int) -> None:
        self.identities.enter(Tenant(NODE, "node", 0, quotas=Quotas(**quotas)))

    async def create(self, name: str, account: str = NODE) -> Topic:
        return await self.catalog.create(new_topic(name, account))


def new_topic(name: str, account: str = NODE, kind: Kind = Kind.STANDARD) -> Topic:
    return Topic(
        topic_id=secrets.token_hex(16),
        account=account,
        region="us-east-1",
        name=name,
        kind=kind,
        partition_count=1,
        created_at_ms=0,
        modified_at_ms=0,
        receipt_key=bytes(32),
    )


def message(size_bytes: int) -> Message:
    return Message(message_id=secrets.token_bytes(16), body=b"m" * size_bytes)


async def test_queues_are_counted_over_regions_and_shares_and_one_more_is_refused(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path) as stage:
        source = await stage.topic("there-before")
        world = World(stage, queues_max=3)
        await world.create("second")
        await world.backend.call(OpenShare(source, 0, "group", start=LATEST))
        for _ in range(2):
            with pytest.raises(QuotaExceeded, match="has 3 of 3 queues and topics"):
                await world.create("fourth")
        with pytest.raises(QuotaExceeded):
            await world.backend.call(OpenShare(source, 0, "group-2", start=LATEST))
        await world.backend.call(OpenShare(source, 0, "group", start=LATEST))  # it is there
        await world.create("theirs", OTHER)
        await world.catalog.delete(NODE, "us-east-1", "second", now_ms=0)
        await world.create("fourth")
        assert world.quotas.used(NODE)["queues_max"] == 3
        assert world.quotas.rejected == {(NODE, "queues"): 3}


async def test_those_who_create_at_the_same_time_do_not_all_get_the_last_place(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path) as stage:
        world = World(stage, queues_max=5)
        results = await asyncio.gather(
            *(world.create(f"q{number}") for number in range(20)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, QuotaExceeded)]
        assert (len(refused), world.quotas.used(NODE)["queues_max"]) == (15, 5)
        assert not world.quotas._reserved


async def test_topics_of_the_node_itself_are_nobodys(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        world = World(stage, queues_max=1)
        await stage.catalog.create(new_topic("__usage", kind=Kind.STREAM))
        assert world.quotas.used(NODE)["queues_max"] == 0
        await world.create("q")


async def test_stored_bytes_are_refused_beyond_the_quota_until_something_is_deleted(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic()
        theirs = await stage.catalog.create(new_topic("theirs", OTHER))
        world = World(stage, stored_bytes_max=100_000)
        await world.backend.call(Append(topic, 0, (message(1_000),)))
        assert world.quotas.rooms == {}, "nobody has looked yet"
        await world.quotas.refresh(stage.broker)
        assert 90_000 < world.quotas.rooms[NODE] < 99_000, "what was there before counts"
        for _ in range(9):
            await world.backend.call(Append(topic, 0, (message(10_000),)))
        with pytest.raises(QuotaExceeded, match=r"9\d,\d{3} of 100,000 bytes used, \d,\d{3} left"):
            await world.backend.call(Append(topic, 0, (message(10_000),)))
        with pytest.raises(QuotaExceeded):
            await world.backend.call(AppendBatches(topic, 0, acks=1, batches=(b"x" * 10_000,)))
        await world.backend.call(Append(theirs, 0, (message(200_000),)))
        await world.quotas.refresh(stage.broker)
        assert world.quotas.rooms[NODE] < 10_000
        assert await world.backend.call(Lease(topic, LeaseRequest())), "what is there can be had"
        await world.catalog.delete(NODE, "us-east-1", "q", now_ms=0)
        again = await stage.topic("again")
        await world.quotas.refresh(stage.broker)
        await world.backend.call(Append(again, 0, (message(10_000),)))
        world.limit()
        await world.quotas.refresh(stage.broker)
        assert world.quotas.rooms == {}
        assert world.quotas.rejected == {(NODE, "stored_bytes"): 2}


async def test_every_node_counts_what_all_of_them_hold_also_while_one_is_away(
    tmp_path: Path,
) -> None:
    async with on_nodes(tmp_path, 1, 2) as cluster:
        jobs = await cluster.topic("jobs", led_by=(1, 2))
        for partition in (0, 1):
            await cluster.put(jobs, partition, [message(10_000)])
        identities = MemoryIdentities()
        identities.enter(Tenant(NODE, "node", 0, quotas=Quotas(stored_bytes_max=100_000)))
        rooms = []
        for number, node in cluster.nodes.items():
            quotas = TenantQuotas(identities, node.catalog)
            routed = cluster.routed(number, retry_seconds_max=0.05)
            await quotas.refresh(routed)
            cluster.truth.move(jobs, 1, None)
            rooms.append(quotas.rooms[NODE])
            await quotas.refresh(routed)
            rooms.append(quotas.rooms[NODE])
            cluster.truth.move(jobs, 1, 2)
        assert len(set(rooms)) == 1
        assert 70_000 < rooms[0] < 80_000


async def test_the_job_looks_again_by_itself_and_ends_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.frontend.limits.quotas.REFRESH_SECONDS", 0.01)
    async with on_stage(tmp_path) as stage:
        world = World(stage)
        world.quotas.start(stage.broker)
        await asyncio.sleep(0)
        world.limit(stored_bytes_max=1_000)
        async with asyncio.timeout(5):
            while NODE not in world.quotas.rooms:
                await asyncio.sleep(0.005)
        world.quotas.stop()


async def test_long_polls_beyond_the_quota_are_refused_and_those_who_leave_make_room(
    tmp_path: Path,
) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic()
        world = World(stage, waits_max=2)
        request = LeaseRequest(wait_ms=20_000)
        waiting = [asyncio.create_task(world.backend.call(Lease(topic, request))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Throttled, match="2 of 2 allowed long polls"):
            await world.backend.call(Lease(topic, request))
        assert not await world.backend.call(Lease(topic, LeaseRequest())), (
            "who does not wait may ask"
        )
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        third = asyncio.create_task(world.backend.call(Lease(topic, request)))
        await asyncio.sleep(0)
        await world.backend.call(Append(topic, 0, (message(1), message(1))))
        assert len(await waiting[1]) == len(await third) == 1
        assert world.quotas._waits == {}


async def test_frontends_divide_what_is_not_counted_in_the_catalog(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic()
        world = World(stage, queues_max=3, stored_bytes_max=90_000, waits_max=4)
        world.quotas.share_among(3)
        await world.quotas.refresh(stage.broker)
        assert world.quotas.rooms[NODE] == 30_000
        request = LeaseRequest(wait_ms=20_000)
        waiting = asyncio.create_task(world.backend.call(Lease(topic, request)))
        await asyncio.sleep(0)
        with pytest.raises(Throttled, match="1 of 1 allowed long polls"):
            await world.backend.call(Lease(topic, request))
        await world.create("second")
        await world.create("third")
        with pytest.raises(QuotaExceeded, match="3 of 3 queues"):
            await world.create("fourth")
        world.quotas.share_among(1)
        more = asyncio.create_task(world.backend.call(Lease(topic, request)))
        await asyncio.sleep(0)
        await world.backend.call(Append(topic, 0, (message(1), message(1))))
        assert len(await waiting) == len(await more) == 1
        await world.quotas.refresh(stage.broker)
        assert world.quotas.rooms[NODE] > 80_000
        world.quotas.share_among(50)
        assert world.quotas.begin_wait(NODE), "one each, however many there are"
        world.quotas.end_wait(NODE)


def test_a_topic_that_is_made_and_fails_leaves_its_place() -> None:
    identities = MemoryIdentities()
    identities.enter(Tenant(NODE, "node", 0, quotas=Quotas(queues_max=1)))
    quotas = TenantQuotas(identities, MemoryCatalog())
    for _ in range(3):
        with pytest.raises(TopicNotFound), quotas.adding(NODE, topics=1):
            raise TopicNotFound("q")
    with quotas.adding(NODE, topics=1):
        pass


async def test_a_tenant_far_from_its_quota_is_summed_up_seldom_and_one_that_was_refused_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stage.topic()
        world = World(stage, stored_bytes_max=100_000)
        quotas = world.quotas
        await quotas.refresh(stage.broker, is_due=False)
        await stage.broker.call(Append(topic, 0, (message(10_000),)))  # elsewhere
        await quotas.refresh(stage.broker, is_due=False)
        assert quotas.used(NODE)["stored_bytes_max"] == 0, "nothing was due"
        await world.backend.call(Append(topic, 0, (message(60_000),)))
        await quotas.refresh(stage.broker, is_due=False)
        assert quotas.used(NODE)["stored_bytes_max"] > 70_000, "half of the room was used"
        await quotas.refresh(stage.broker, is_due=False)
        await stage.broker.call(Append(topic, 0, (message(1_000),)))
        with pytest.raises(QuotaExceeded):
            await world.backend.call(Append(topic, 0, (message(90_000),)))
        await quotas.refresh(stage.broker, is_due=False)
        assert quotas.used(NODE)["stored_bytes_max"] > 71_000, "somebody was refused"
        quotas.share_among(2)
        await quotas.refresh(stage.broker, is_due=False)
        assert quotas.rooms[NODE] < 15_000, "divided anew"
        for _ in range(2):
            quotas._log_rejected()
        [record] = [record for record in caplog.records if record.message == "quota exceeded"]
        told = vars(record)
        assert (told["tenant"], told["quota"], told["refused"]) == (NODE, "stored_bytes", 1)
