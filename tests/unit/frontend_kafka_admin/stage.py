"""Administrative requests through their codecs to the actions, on a real catalog. The ports that
administration does not use are not there, so touching one would fail."""

import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tests.unit.frontend.memory import MemoryIdentities

from penstock.frontend.kafka.actions import ACTIONS
from penstock.frontend.kafka.config import KafkaConfig
from penstock.frontend.kafka.configs.broker_configs import TOPIC_NAMES
from penstock.frontend.kafka.context import KafkaCall, KafkaContext
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.topics.catalog import StoredCatalog
from penstock.metadata.topics.resource_configs import DynamicConfigs, ResourceConfigs
from penstock.model.identity import Caller
from penstock.model.levels import LEVEL_MAX
from penstock.model.topic import Kind, QueueSettings, Topic
from penstock.wire.kafka.apis import APIS, RequestHeader
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import incremental_alter_configs
from penstock.wire.kafka.generated.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from penstock.wire.kafka.generated.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from penstock.wire.kafka.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
)

ACCOUNT = "000000000000"
REGION = "us-east-1"
NODE_ID = 7
BELIEVED = Caller(ACCOUNT, "anonymous", is_trusted=True)
TOPIC = 2
NODE = 4
GROUP = 32


class HandClock:
    def __init__(self) -> None:
        self.wall = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.wall

    def mono_ms(self) -> int:
        return self.wall


@dataclass
class Admin:
    context: KafkaContext
    catalog: StoredCatalog
    clock: HandClock

    async def ask(self, key: int, request: object, version: int | None = None) -> Any:
        """What a client gets, after both messages have been bytes. The newest version unless
        said otherwise."""
        api = APIS[key]
        version = api.version_max if version is None else version
        codec = api.codec()
        asked = codec.decode_request(codec.encode_request(request, version), 0, version)
        header = RequestHeader(key, version, 1, "test", 0)
        no_connection: Any = None
        call = KafkaCall(self.context, header, api, no_connection, BELIEVED)
        response = await ACTIONS[key](call, asked)
        return codec.decode_response(codec.encode_response(response, version), 0, version)

    def find(self, name: str) -> Topic | None:
        return self.catalog.find(ACCOUNT, REGION, name)

    def stored(self, name: str) -> Topic:
        topic = self.find(name)
        assert topic is not None
        return topic

    async def create(
        self,
        name: str = "t",
        configs: Mapping[str, str | None] | None = None,
        *,
        partitions: int = -1,
        replicas: int = -1,
        version: int | None = None,
        is_dry: bool = False,
        **more: Any,
    ) -> CreatableTopicResult:
        wanted = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=[CreatableTopicConfig(*pair) for pair in (configs or {}).items()],
            **more,
        )
        request = CreateTopicsRequest(topics=(wanted,), validate_only=is_dry)
        response = await self.ask(19, request, version)
        (result,) = response.topics
        assert isinstance(result, CreatableTopicResult)
        return result

    async def create_queue(self, name: str = "q", *, kind: Kind = Kind.STANDARD) -> Topic:
        """As the SQS view would."""
        return await self.catalog.create(
            Topic(
                topic_id=secrets.token_hex(16),
                account=ACCOUNT,
                region=REGION,
                name=name,
                kind=kind,
                partition_count=1,
                created_at_ms=self.clock.wall,
                modified_at_ms=self.clock.wall,
                receipt_key=b"k" * 32,
                settings=QueueSettings(retention_ms=120_000),
            )
        )

    async def create_internal(self, name: str = "__groups") -> Topic:
        """As the node would for itself."""
        queue = await self.create_queue("template")
        return await self.catalog.create(
            msgspec.structs.replace(
                queue, name=name, topic_id=secrets.token_hex(16), kind=Kind.STREAM
            )
        )

    async def describe(
        self,
        name: str,
        keys: Sequence[str] | None = None,
        *,
        of: int = TOPIC,
        version: int | None = None,
        **more: bool,
    ) -> DescribeConfigsResult:
        request = DescribeConfigsRequest(
            resources=(DescribeConfigsResource(of, name, keys),), **more
        )
        (result,) = (await self.ask(32, request, version)).results
        assert isinstance(result, DescribeConfigsResult)
        return result

    async def config(self, topic: str, key: str, **more: bool) -> DescribeConfigsResourceResult:
        (config,) = (await self.describe(topic, [key], **more)).configs
        return config

    async def replace(
        self,
        name: str,
        configs: Mapping[str, str | None],
        *,
        of: int = TOPIC,
        is_dry: bool = False,
        version: int | None = None,
    ) -> tuple[int, str | None]:
        """AlterConfigs."""
        given = [AlterableConfig(*pair) for pair in configs.items()]
        request = AlterConfigsRequest((AlterConfigsResource(of, name, given),), is_dry)
        (result,) = (await self.ask(33, request, version)).responses
        assert (result.resource_type, result.resource_name) == (of, name)
        return result.error_code, result.error_message


async def alter(
    admin: Admin,
    name: str,
    *changes: tuple[str, int, str | None],
    of: int = TOPIC,
    is_dry: bool = False,
    version: int | None = None,
) -> tuple[ErrorCode, str | None]:
    """IncrementalAlterConfigs."""
    configs = [incremental_alter_configs.AlterableConfig(*change) for change in changes]
    resource = incremental_alter_configs.AlterConfigsResource(of, name, configs)
    request = incremental_alter_configs.IncrementalAlterConfigsRequest((resource,), is_dry)
    (result,) = (await admin.ask(44, request, version)).responses
    assert (result.resource_type, result.resource_name) == (of, name)
    return ErrorCode(result.error_code), result.error_message


@asynccontextmanager
async def admin_on(
    folder: Path, *, level: Callable[[], int] = lambda: LEVEL_MAX, **config: Any
) -> AsyncIterator[Admin]:
    store = await SqliteStore.open(folder / "metadata.sqlite3")
    catalog = StoredCatalog(store)
    await catalog.start()
    clock = HandClock()
    configs = ResourceConfigs(store)
    dynamic = DynamicConfigs(
        configs, account=ACCOUNT, node=NODE_ID, level=level, topic_names=TOPIC_NAMES
    )
    await configs.start()
    absent: Any = None
    context = KafkaContext(
        broker=absent,
        anywhere=absent,
        catalog=catalog,
        groups=absent,
        transactions=absent,
        producer_ids=absent,
        clock=clock,
        config=KafkaConfig(advertised=lambda: ("127.0.0.1", 9092), node_id=NODE_ID, **config),
        meter=absent,
        entropy=secrets.token_bytes,
        identities=MemoryIdentities(),
        dynamic=dynamic,
    )
    try:
        yield Admin(context, catalog, clock)
    finally:
        await configs.stop()
        await catalog.stop()
        await store.close()
