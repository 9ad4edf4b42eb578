"""Strangers and the impatient, on real sockets: how much they may send, for how long they may wait,
and when they are heard again."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.frontend_kafka.rig import batch
from tests.unit.frontend_kafka_access.stage import (
    OTHER,
    OWN,
    PASSWORD,
    Client,
    House,
    allow,
    codes,
    house_on,
)

from penstock.frontend.kafka.access.quotas import Entity, entity_text
from penstock.frontend.kafka.pipeline import is_produce
from penstock.frontend.limits.quotas import WAIT_RETRY_MS
from penstock.metadata.topics.resource_configs import CLIENT_QUOTA, Resource
from penstock.model.calls import AppendBatches
from penstock.model.identity import Limits, Quotas, Rate
from penstock.model.limits import CLIENT_NAME_CHARS_MAX
from penstock.net.kafka.listener import KafkaConfig, KafkaListener
from penstock.wire.kafka.apis import APIS, encode_request_frame, parse_response_header
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.kafka.generated.heartbeat import HeartbeatRequest
from penstock.wire.kafka.generated.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.kafka.generated.sasl_authenticate import SaslAuthenticateRequest
from penstock.wire.kafka.generated.sasl_handshake import SaslHandshakeRequest
from penstock.wire.kafka.primitives import ZERO_UUID
from penstock.wire.kafka.produce import ProducePartition, ProduceRequest, ProduceTopic

METADATA, HEARTBEAT, HANDSHAKE, AUTHENTICATE = 3, 12, 17, 36
SECONDS_MAX = 10.0


class Wire:
    """One client's end of a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, key: int, request: Any, version: int | None = None) -> None:
        api = APIS[key]
        version = api.version_max if version is None else version
        body = api.codec().encode_request(request, version)
        frame = encode_request_frame(api, version, correlation_id=1, client_id="me", body=body)
        self.writer.write(frame)

    async def receive(self, key: int, version: int | None = None) -> Any:
        api = APIS[key]
        version = api.version_max if version is None else version
        async with asyncio.timeout(SECONDS_MAX):
            (length,) = struct.unpack(">i", await self.reader.readexactly(4))
            data = await self.reader.readexactly(length)
        _, at = parse_response_header(data, api.response_header_version(version))
        return api.codec().decode_response(data, at, version)

    async def ask(self, key: int, request: Any, version: int | None = None) -> Any:
        self.send(key, request, version)
        return await self.receive(key, version)

    async def log_in(self, user: str, password: str = PASSWORD) -> Any:
        assert (await self.ask(HANDSHAKE, SaslHandshakeRequest("PLAIN"))).error_code == 0
        token = b"\0" + user.encode() + b"\0" + password.encode()
        return await self.ask(AUTHENTICATE, SaslAuthenticateRequest(token))

    async def rest(self) -> bytes:
        """Until the other end has closed."""
        async with asyncio.timeout(SECONDS_MAX):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""


@asynccontextmanager
async def wired(house: House, **config: Any) -> AsyncIterator[Wire]:
    given = {"login_frame_bytes_max": 65_536, **config}
    listener = KafkaListener(
        house.frontend.answer, config=KafkaConfig(**given), outlives=is_produce
    )
    address = await listener.start("127.0.0.1", 0)
    wire = Wire(*await asyncio.open_connection(*address.rsplit(":", 1)))
    try:
        yield wire
    finally:
        wire.writer.close()
        await listener.drain(seconds_max=1)


@pytest.fixture
async def ann(house: House) -> House:
    await house.user("ann", allow("*"))
    return house


# ── Strangers ────────────────────────────────────────────────────────────────────────────────


async def test_a_stranger_who_sends_much_is_hung_up_on(ann: House) -> None:
    async with wired(ann) as wire:
        wire.writer.write(struct.pack(">i", 65_537) + b"\0" * 100)
        assert await wire.rest() == b""


async def test_one_who_is_in_may_send_much(ann: House) -> None:
    async with wired(ann) as wire:
        assert (await wire.log_in("ann")).error_code == 0
        records = memoryview(batch(b"x" * 200_000))
        topics = [ProduceTopic("nowhere", ZERO_UUID, [ProducePartition(0, records)])]
        found = await wire.ask(0, ProduceRequest(None, -1, 1_000, topics), 12)
        assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION in set(codes(found))


async def test_a_stranger_who_asks_for_more_than_to_be_let_in_is_hung_up_on(ann: House) -> None:
    async with wired(ann) as wire:
        wire.send(METADATA, MetadataRequest(None))
        assert await wire.rest() == b""


async def test_who_is_refused_is_told_so_and_then_hung_up_on(ann: House) -> None:
    async with wired(ann) as wire:
        found = await wire.log_in("ann", "wrong")
        assert found.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await wire.rest() == b""


async def test_what_is_sent_behind_a_refused_log_in_is_not_heard(ann: House) -> None:
    async with wired(ann) as wire:
        await wire.ask(HANDSHAKE, SaslHandshakeRequest("PLAIN"))
        wire.send(AUTHENTICATE, SaslAuthenticateRequest(b"\0ann\0wrong"))
        wire.send(METADATA, MetadataRequest(None))
        found = await wire.receive(AUTHENTICATE)
        assert found.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await wire.rest() == b""
    assert [name for name, _, _ in ann.meter.requests] == ["SaslHandshake", "SaslAuthenticate"]


@pytest.mark.slow
async def test_a_stranger_who_takes_its_time_is_hung_up_on(ann: House) -> None:
    async with wired(ann, login_seconds_max=2.0) as wire:
        await wire.ask(HANDSHAKE, SaslHandshakeRequest("PLAIN"))
        assert await wire.rest() == b""
    async with wired(ann, login_seconds_max=2.0) as wire:
        assert (await wire.log_in("ann")).error_code == 0
        await asyncio.sleep(3.2)  # beyond the time of strangers, and two sweeps of the listener
        assert (await wire.ask(METADATA, MetadataRequest(None))).brokers


# ── Who asks too much ────────────────────────────────────────────────────────────────────────

BEAT = HeartbeatRequest("g", 1, "m")


async def limited(house: House, **limits: Any) -> None:
    await house.tenant(limits=Limits(**limits))
    await house.user("ann", allow("*"))


async def test_one_who_asks_too_often_is_answered_at_once_and_then_paused(house: House) -> None:
    await limited(house, tenant_requests=Rate(per_s=2))
    loop = asyncio.get_running_loop()
    async with wired(house) as wire:
        await wire.log_in("ann")
        assert (await wire.ask(HEARTBEAT, BEAT)).throttle_time_ms == 0
        took = []
        for _ in range(3):
            began = loop.time()
            last = await wire.ask(HEARTBEAT, BEAT)
            took.append(loop.time() - began)
            assert 500 <= last.throttle_time_ms <= 510
            house.clock.advance(60_000)  # nothing is owed any more; the pause goes on
            assert (await wire.ask(HEARTBEAT, BEAT)).throttle_time_ms == 0
            assert loop.time() - began >= 0.5
        assert min(took) < 0.45  # the pause is behind the answer


async def test_a_request_with_many_entries_counts_as_many_requests(house: House) -> None:
    await limited(house, tenant_requests=Rate(per_s=10))
    topics = [MetadataRequestTopic(name=f"t-{number}") for number in range(5_000)]
    asked = MetadataRequest(topics, allow_auto_topic_creation=False)
    client = await house.client("ann")
    found = await client.ask(METADATA, asked)
    assert 4_000 <= found.throttle_time_ms <= 4_200  # 50 requests, of which 10 are free
    few = MetadataRequest(topics[:99], allow_auto_topic_creation=False)
    house.clock.advance(60_000)
    other = await house.client("ann")
    for _ in range(9):
        assert (await other.ask(METADATA, few)).throttle_time_ms == 0


async def test_a_pause_holds_what_was_sent_ahead_and_loses_none_of_it(house: House) -> None:
    await limited(house, tenant_requests=Rate(per_s=10))
    async with wired(house) as wire:
        await wire.log_in("ann")
        for _ in range(14):
            wire.send(HEARTBEAT, BEAT)
        found = [await wire.receive(HEARTBEAT) for _ in range(14)]
        assert [each.error_code for each in found] == [ErrorCode.UNKNOWN_MEMBER_ID] * 14
        assert sum(each.throttle_time_ms > 0 for each in found) == 5


async def test_bytes_are_those_of_records_in_both_directions(house: House) -> None:
    topic = await house.topic()
    await limited(house, tenant_bytes=Rate(per_s=10_000))
    client = await house.client("ann")
    records = memoryview(batch(b"x" * 20_000))
    topics = [ProduceTopic("t", ZERO_UUID, [ProducePartition(0, records)])]
    sent = await client.ask(0, ProduceRequest(None, -1, 1_000, topics), 12)
    assert 1_000 <= sent.throttle_time_ms <= 1_200
    assert client.connection._pause is not None
    house.clock.advance(60_000)
    other = await house.client("ann")
    topic_id = bytes.fromhex(topic.topic_id)
    asked = FetchRequest(0, 1, [FetchTopic("", topic_id, [FetchPartition(0, 0, 100_000)])])
    found = await other.ask(1, asked)
    assert 1_000 <= found.throttle_time_ms <= 1_200
    ((one,),) = (each.partitions for each in found.topics)
    assert sum(map(len, one.records)) > 20_000  # said beside the records, not instead of them


async def test_a_producer_that_wants_no_answer_is_paused_all_the_same(house: House) -> None:
    await house.topic()
    await limited(house, tenant_bytes=Rate(per_s=10_000))
    client = await house.client("ann")
    records = memoryview(batch(b"x" * 20_000))
    topics = [ProduceTopic("t", ZERO_UUID, [ProducePartition(0, records)])]
    assert await client.ask(0, ProduceRequest(None, 0, 1_000, topics), 12) is None
    assert client.connection._pause is not None


async def test_an_api_may_have_a_limit_of_its_own(house: House) -> None:
    await house.tenant(limits=Limits(operations={"kafka:Heartbeat": Rate(per_s=1)}))
    await house.user("ann", allow("*"))
    client = await house.client("ann")
    assert (await client.ask(HEARTBEAT, BEAT)).throttle_time_ms > 0
    assert (await client.ask(METADATA, MetadataRequest(None))).throttle_time_ms == 0


# ── Quotas of users and client ids ───────────────────────────────────────────────────────────
async def quota(house: House, account: str, entity: Entity, **rates: int) -> None:
    resource = Resource(account, CLIENT_QUOTA, entity_text(entity))
    texts = {key: str(rate) for key, rate in rates.items()}
    await house.context.dynamic.stored.change(resource, texts)


async def produced(client: Client, size: int = 20_000) -> int:
    """For how long the producer is told to pause."""
    records = memoryview(batch(b"x" * size))
    topics = [ProduceTopic("t", ZERO_UUID, [ProducePartition(0, records)])]
    reply = await client.ask(0, ProduceRequest(None, -1, 1_000, topics), 12)
    return int(reply.throttle_time_ms)


async def test_a_producer_over_its_quota_is_paused(house: House) -> None:
    await house.topic()
    for name in ("ann", "bob"):
        await house.user(name, allow("*"))
    ann, bob = await house.client("ann"), await house.client("bob")
    assert await produced(ann) == 0
    await quota(house, OWN, (("user", "ann"),), producer_byte_rate=10_000)
    assert 1_000 <= await produced(ann) <= 1_200
    assert ann.connection._pause is not None
    assert house.context.throttler.rejected == {(OWN, "producer_byte_rate"): 1}
    assert await produced(bob) == 0
    assert bob.connection._pause is None
    again = await house.client("ann")
    assert (await again.ask(METADATA, MetadataRequest(None))).throttle_time_ms == 0
    # All of ann's connections share the quota, whatever their client ids.
    assert await produced(again) >= 2_900


async def test_a_consumer_over_its_quota_is_paused_and_gets_bounded_replies(house: House) -> None:
    topic = await house.topic()
    await house.user("ann", allow("*"))
    client = await house.client("ann")
    for _ in range(12):
        assert await produced(client, 2_000) == 0
    partitions = [FetchPartition(0, 0, 1_000_000)]
    asked = FetchRequest(0, 1, [FetchTopic("", bytes.fromhex(topic.topic_id), partitions)])

    def size(reply: Any) -> int:
        ((one,),) = (each.partitions for each in reply.topics)
        return sum(map(len, one.records))

    free = await client.ask(1, asked)
    assert (free.throttle_time_ms, size(free) > 24_000) == (0, True)
    await quota(house, OWN, (("client-id", None),), consumer_byte_rate=1_000)
    held = await client.ask(1, asked)
    assert size(held) <= 10_000
    assert 7_000 <= held.throttle_time_ms <= 9_500
    assert client.connection._pause is not None


async def test_a_tenants_quotas_count_for_its_own_clients_only(house: House) -> None:
    for account in (OWN, OTHER):
        await house.topic(account=account)
        await house.user("ann", allow("*"), account=account)
    await quota(house, OTHER, (("user", None),), producer_byte_rate=10_000)
    assert await produced(await house.client("ann")) == 0
    assert await produced(await house.client("ann", account=OTHER)) >= 1_000


async def test_long_client_ids_count_as_their_first_characters(house: House) -> None:
    """Clients choose their ids, and a node remembers thousands of them."""
    await house.topic()
    await house.user("ann", allow("*"))
    await quota(house, OWN, (("client-id", None),), producer_byte_rate=10_000)
    first, second, third = [await house.client("ann") for _ in range(3)]
    first.client_id = "c" * CLIENT_NAME_CHARS_MAX
    second.client_id = first.client_id + "d" * 30_000
    third.client_id = "d" * CLIENT_NAME_CHARS_MAX
    assert 1_000 <= await produced(first) <= 1_200
    # 50 KB, ids included. By itself it would pause for 4 seconds.
    assert await produced(second) >= 5_000, "the same as the first"
    assert await produced(third) <= 1_200


async def test_without_a_login_the_user_is_anonymous(tmp_path: Path) -> None:
    async with house_on(tmp_path, is_auth_on=False) as house:
        await house.topic()
        await quota(house, OWN, (("user", "ANONYMOUS"),), producer_byte_rate=10_000)
        assert await produced(Client(house)) >= 1_000


def long_poll(topic_id: str) -> FetchRequest:
    partition = FetchPartition(0, 0, 100_000)
    return FetchRequest(30_000, 1, [FetchTopic("", bytes.fromhex(topic_id), [partition])])


async def test_fetches_that_wait_are_long_polls_and_one_too_many_is_paused(house: House) -> None:
    topic = await house.topic()
    await house.tenant(quotas=Quotas(waits_max=2))
    await house.user("ann", allow("*"))
    clients = [await house.client("ann") for _ in range(3)]
    asked = long_poll(topic.topic_id)
    waiting = [asyncio.create_task(each.ask(1, asked)) for each in clients[:2]]
    parked = house.context.parked
    async with asyncio.timeout(SECONDS_MAX):
        while len(parked) < 2:
            await asyncio.sleep(0)
        found = await clients[2].ask(1, asked)
    assert found.throttle_time_ms == WAIT_RETRY_MS
    assert clients[2].connection._pause is not None, "or it would ask again at once"
    assert len(parked) == 2
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    third = asyncio.create_task(clients[2].ask(1, asked))
    async with asyncio.timeout(SECONDS_MAX):
        while len(parked) < 2:
            await asyncio.sleep(0)
    await house.stage.broker.call(AppendBatches(topic, 0, acks=1, batches=(batch(b"at last"),)))
    for answer in await asyncio.gather(waiting[1], third):
        ((one,),) = (each.partitions for each in answer.topics)
        assert one.records
        assert answer.throttle_time_ms == 0
    quotas = house.context.quotas
    assert quotas is not None
    assert quotas._waits == {}
    assert quotas.rejected == {("000000000000", "waits"): 1}


async def test_one_tenant_does_not_pause_another(house: House) -> None:
    await limited(house, tenant_requests=Rate(per_s=1))
    await house.user("bob", allow("*"), account="222222222222")
    ann = await house.client("ann")
    bob = await house.client("bob", account="222222222222")
    for _ in range(3):
        await ann.ask(HEARTBEAT, BEAT)
    assert (await bob.ask(HEARTBEAT, BEAT)).throttle_time_ms == 0
    assert bob.connection._pause is None


async def test_who_has_no_limits_is_never_paused(house: House) -> None:
    await house.user("ann", allow("*"))
    client: Client = await house.client("ann")
    for _ in range(50):
        assert (await client.ask(HEARTBEAT, BEAT)).throttle_time_ms == 0
    assert client.connection._pause is None
