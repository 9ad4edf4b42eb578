"""Share groups from a client's bytes down to a real broker and back, by a clock moved by hand."""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
from tests.unit.broker.stage import HandClock, Stage, on_stage
from tests.unit.frontend_kafka.rig import CORRELATION_ID, Rig, batch

from penstock.broker.coordination.groups import GroupHost
from penstock.broker.coordination.host import CoordinatorSetup
from penstock.cursor.groups.settings import GroupSettings
from penstock.frontend.limited_calls import streams_of
from penstock.model.calls import AppendBatches
from penstock.model.file_slice import in_memory
from penstock.model.names import ACCOUNT_DEFAULT, REGION_DEFAULT
from penstock.model.topic import Kind, Topic
from penstock.net.kafka.listener import KafkaConfig as ListenerConfig
from penstock.net.kafka.listener import KafkaConnection, KafkaListener
from penstock.record.batch import split_batches
from penstock.record.record import iter_records
from penstock.wire.kafka.apis import APIS, LENGTH_BYTES, encode_request_frame, parse_response_header
from penstock.wire.kafka.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.wire.kafka.generated.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from penstock.wire.kafka.generated.share_fetch import AcknowledgementBatch as FetchAck
from penstock.wire.kafka.generated.share_fetch import (
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
)
from penstock.wire.kafka.generated.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

HEARTBEAT, DESCRIBE, FETCH, ACKNOWLEDGE = 76, 77, 78, 79
OFFSETS, ALTER_OFFSETS, DELETE_OFFSETS = 90, 91, 92
LIST, DELETE_GROUPS, ALTER_CONFIGS, INCREMENTAL, DESCRIBE_CONFIGS = 16, 42, 33, 44, 32
GROUP = 32

Acks = Sequence[tuple[int, int, tuple[int, ...]]]  # first, last, types


class Member:
    """One client with a connection of its own; sessions as a client keeps them."""

    def __init__(self, rig: "ShareRig", name: str, group: str) -> None:
        listener = KafkaListener(rig.frontend.answer, config=ListenerConfig())
        self.connection = cast(KafkaConnection, listener.make_connection())
        self.rig = rig
        self.name = name
        self.group = group
        self.epoch = 0  # of the membership
        self.session_epoch = 0

    async def ask(self, key: int, request: Any, version: int | None = None) -> Any:
        api = APIS[key]
        version = api.version_max if version is None else version
        body = api.codec().encode_request(request, version)
        frame = encode_request_frame(
            api, version, correlation_id=CORRELATION_ID, client_id=self.name, body=body
        )
        buffers = await self.rig.frontend.answer(self.connection, frame[LENGTH_BYTES:])
        assert buffers is not None
        data = b"".join(in_memory(buffers))
        _, at = parse_response_header(data, api.response_header_version(version))
        return api.codec().decode_response(data, at, version)

    async def beat(self, *names: str, epoch: int | None = None) -> ShareGroupHeartbeatResponse:
        request = ShareGroupHeartbeatRequest(
            self.group,
            self.name,
            self.epoch if epoch is None else epoch,
            subscribed_topic_names=names or None,
        )
        found: ShareGroupHeartbeatResponse = await self.ask(HEARTBEAT, request)
        if not found.error_code:
            self.epoch = found.member_epoch
        return found

    async def fetch(
        self,
        topic: Topic | None = None,
        partitions: Sequence[int] = (0,),
        *,
        acks: Acks = (),
        epoch: int | None = None,
        forget: Sequence[int] = (),
        version: int = 2,
        **fields: Any,
    ) -> ShareFetchResponse:
        asked = {"max_wait_ms": 0, "min_bytes": 1, "max_records": 500, "batch_size": 500, **fields}
        topics, forgotten = [], []
        if topic is not None:
            topic_id = bytes.fromhex(topic.topic_id)
            base = self.rig.base
            given = [FetchAck(base + first, base + last, types) for first, last, types in acks]
            topics = [
                FetchTopic(
                    topic_id,
                    [FetchPartition(p, acknowledgement_batches=given) for p in partitions],
                )
            ]
            forgotten = [ForgottenTopic(topic_id, forget)] if forget else []
        request = ShareFetchRequest(
            self.group,
            self.name,
            self.session_epoch if epoch is None else epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
            **asked,
        )
        found: ShareFetchResponse = await self.ask(FETCH, request, version)
        if not found.error_code:
            self.session_epoch += 1
        return found

    async def acknowledge(
        self,
        topic: Topic,
        acks: Acks,
        *,
        partition: int = 0,
        epoch: int | None = None,
        version: int = 2,
        is_renewal: bool = False,
    ) -> ShareAcknowledgeResponse:
        base = self.rig.base
        batches = [
            AcknowledgementBatch(base + first, base + last, ack) for first, last, ack in acks
        ]
        request = ShareAcknowledgeRequest(
            self.group,
            self.name,
            self.session_epoch if epoch is None else epoch,
            is_renewal,
            [
                AcknowledgeTopic(
                    bytes.fromhex(topic.topic_id), [AcknowledgePartition(partition, batches)]
                )
            ],
        )
        found: ShareAcknowledgeResponse = await self.ask(ACKNOWLEDGE, request, version)
        if not found.error_code:
            self.session_epoch += 1
        return found


class ShareRig(Rig):
    def __init__(self, stage: Stage, groups: GroupHost) -> None:
        super().__init__()
        self.stage = stage
        self.hand = stage.clock
        self.host = groups
        self.base = 0  # offset of the last batch sent: tests count from there
        context = self.context
        context.broker = stage.broker
        context.anywhere = stage.broker
        context.catalog = streams_of(stage.catalog)
        context.clock = stage.clock
        context.groups = groups

    async def stream(self, name: str = "t", partitions: int = 1) -> Topic:
        topic = await self.stage.topic(name, partitions=partitions)
        return await self.stage.catalog.change(
            topic.account,
            topic.region,
            topic.name,
            lambda found: msgspec.structs.replace(found, kind=Kind.STREAM),
        )

    async def send(self, topic: Topic, *values: bytes, partition: int = 0) -> None:
        done = await self.stage.broker.call(
            AppendBatches(topic, partition, acks=-1, batches=[batch(*values)])
        )
        self.base = done.base_offset

    def acquired(self, found: ShareFetchResponse) -> list[tuple[int, int, int]]:
        """(first, last, deliveries) of the one partition; empty when nothing is said of any."""
        if not found.responses:
            assert found.error_code == 0, found.error_message
            return []
        return [
            (each.first_offset - self.base, each.last_offset - self.base, each.delivery_count)
            for each in only(found).acquired_records
        ]

    def member(self, name: str = "m", group: str = "g") -> Member:
        return Member(self, name, group)

    async def joined(self, *topics: str, name: str = "m", group: str = "g") -> Member:
        member = self.member(name, group)
        found = await member.beat(*topics)
        assert found.error_code == 0, found.error_message
        return member

    async def configure(self, group: str = "g", **configs: str | None) -> tuple[int, str | None]:
        """IncrementalAlterConfigs; None goes back to the default."""
        given = [
            AlterableConfig(name.replace("_", "."), 1 if text is None else 0, text)
            for name, text in configs.items()
        ]
        request = IncrementalAlterConfigsRequest([AlterConfigsResource(GROUP, group, given)])
        (found,) = (await self.ask(INCREMENTAL, 1, request)).responses
        return found.error_code, found.error_message


def only(found: ShareFetchResponse) -> PartitionData:
    assert found.error_code == 0, found.error_message
    ((partition,),) = (topic.partitions for topic in found.responses)
    return partition


def values(found: ShareFetchResponse) -> list[bytes]:
    """The records that were acquired, as an application sees them."""
    partition = only(found)
    mine = {
        offset
        for each in partition.acquired_records
        for offset in range(each.first_offset, each.last_offset + 1)
    }
    return [
        record.value or b""
        for one in split_batches([partition.records])
        for record in iter_records(one)
        if record.offset in mine
    ]


@asynccontextmanager
async def shares(folder: Path, clock: HandClock | None = None) -> AsyncIterator[ShareRig]:
    async with on_stage(folder, clock) as stage:
        setup = CoordinatorSetup(
            broker=stage.broker,
            catalog=stage.catalog,
            clock=stage.clock,
            entropy=secrets.token_bytes,
            account=ACCOUNT_DEFAULT,
            region=REGION_DEFAULT,
        )
        host = GroupHost(setup, settings=GroupSettings(initial_delay_ms=0))
        stage.broker.shares.settings_of = host.settings_of
        await host.start()
        try:
            yield ShareRig(stage, host)
        finally:
            await host.stop()
