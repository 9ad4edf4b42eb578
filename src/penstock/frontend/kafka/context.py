"""What every Kafka action may reach, handed down as one value, and what an action is.

A ``KafkaContext`` lives as long as the frontend; a ``KafkaCall`` lives for one request. Nothing
here decides anything. The ports that are the Kafka view's own stand here or next to it: the broker
implements them, and this side knows no more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from penstock.frontend.context import Meter
from penstock.frontend.kafka.group_calls import GroupCalls
from penstock.frontend.kafka.parked import ParkedFetches
from penstock.frontend.kafka.transaction_calls import TransactionCalls
from penstock.model.names import ACCOUNT_DEFAULT, REGION_DEFAULT
from penstock.model.ports import Catalog, Clock, Streams
from penstock.model.topic import Topic
from penstock.net.kafka import KafkaConnection
from penstock.wire.kafka.apis import Api
from penstock.wire.kafka.frame import RequestHeader

PARTITIONS_MAX = 1_024  # of one topic; each costs open files and a log


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    # Where clients reach this node. The port may be known only once the listener has it.
    advertised: Callable[[], tuple[str, int]]
    node_id: int = 1
    cluster_id: str = ""
    # Kafka names have no account and no region of their own: all live in this one namespace.
    account: str = ACCOUNT_DEFAULT
    region: str = REGION_DEFAULT
    auto_create: bool = True
    partitions_default: int = 1
    # What DescribeLogDirs shows; a label for people, nothing is opened by it.
    log_dir: str = "data"

    def __post_init__(self) -> None:
        assert 1 <= self.partitions_default <= PARTITIONS_MAX, "partitions_default out of range"


class TopicCatalog(Catalog, Protocol):
    """The catalog, asked by id as well: newer clients name topics by nothing else."""

    def find_id(self, topic_id: str) -> Topic | None:
        """In any account and region; ``topics.py`` sees to it that ours are found only."""
        ...


class ProducerIds(Protocol):
    """Numbers for producers that want none of their batches twice."""

    async def next_id(self) -> int:
        """Never the same number again, not after a restart either; 0 or greater."""
        ...


@dataclass(slots=True, kw_only=True)
class KafkaContext:
    streams: Streams
    catalog: TopicCatalog
    groups: GroupCalls
    transactions: TransactionCalls
    producer_ids: ProducerIds
    clock: Clock
    config: KafkaConfig
    meter: Meter
    entropy: Callable[[int], bytes]
    parked: ParkedFetches = field(default_factory=ParkedFetches)


class KafkaCall:
    """One request, as far as its header and its connection tell."""

    __slots__ = ("api", "connection", "header")

    def __init__(self, header: RequestHeader, api: Api, connection: KafkaConnection) -> None:
        self.header = header
        self.api = api
        self.connection = connection

    @property
    def version(self) -> int:
        return self.header.api_version

    @property
    def client_id(self) -> str:
        return self.header.client_id or ""

    @property
    def client_host(self) -> str:
        """As Kafka shows it in group descriptions, with its slash."""
        return "/" + self.connection.peer


class KafkaAction(msgspec.Struct, frozen=True):
    """One API. ``run`` gets the decoded request of that API and returns its response, or None when
    the client wants no answer. Both are open here and exact in each action's file.

    An action answers errors in its own response, in the field and for the part of the request
    they belong to. What it raises ends the connection."""

    key: int
    run: Callable[[KafkaContext, KafkaCall, Any], Coroutine[Any, Any, Any]]
