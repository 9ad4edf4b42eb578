"""The two objects that a handler uses: the context of a tenant and the call of one request.

A ``KafkaContext`` lives as long as the frontend, a ``KafkaCall`` as long as its request. Names in
Kafka requests have no account, so they belong to the account of the caller. A handler gets the
context of that account, in which topics, groups and transactions of other accounts do not exist."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from msgspec.structs import astuple

from penstock.access.decisions import Decisions
from penstock.cursor.coordinator_calls import Coordinators, GroupCoordinators
from penstock.frontend.encryption.sealing import Sealing
from penstock.frontend.facts.audit import AuditTrail
from penstock.frontend.facts.usage import Meter
from penstock.frontend.kafka.config import KafkaConfig
from penstock.frontend.kafka.login.logins import Logins
from penstock.frontend.kafka.login.passwords import Passwords
from penstock.frontend.kafka.ports.cluster import Brokers, KafkaCluster
from penstock.frontend.kafka.ports.coordinators import ScopedCoordinators, ScopedGroups
from penstock.frontend.kafka.sessions.by_identity import ByIdentity
from penstock.frontend.kafka.sessions.fetch_sessions import FetchSessions
from penstock.frontend.kafka.sessions.share_sessions import ShareSessions
from penstock.frontend.kafka.sessions.waiting_fetches import WaitingFetches
from penstock.frontend.kafka.usage import KafkaUsage
from penstock.frontend.limits.quotas import TenantQuotas
from penstock.frontend.limits.throttler import Throttler
from penstock.metadata.security.acl_rules import DelegationTokens
from penstock.metadata.security.identities import StoredIdentities
from penstock.metadata.topics.resource_configs import DynamicConfigs
from penstock.model.calls import BrokerPort
from penstock.model.identity import Caller, Circumstances
from penstock.model.levels import LEVEL_MAX
from penstock.model.ports import Catalog, Clock, Identities
from penstock.model.stream import TopicDefaults
from penstock.net.kafka.listener import KafkaConnection
from penstock.net.slices import Slices, Turns
from penstock.wire.kafka.apis import Api, RequestHeader

T = TypeVar("T")


class ProducerIds(Protocol):
    async def next_id(self) -> int:
        """Return a producer id of 0 or greater that was never used, not even before a restart."""


@dataclass(slots=True, kw_only=True)
class KafkaContext:
    broker: BrokerPort  # of this node; clients find the leaders themselves
    anywhere: BrokerPort  # the brokers of all nodes, for share groups
    catalog: Catalog
    groups: GroupCoordinators
    transactions: Coordinators
    producer_ids: ProducerIds
    clock: Clock
    config: KafkaConfig
    meter: Meter
    entropy: Callable[[int], bytes]
    sealing: Sealing | None = None  # None: records are not encrypted
    identities: Identities
    tokens: DelegationTokens | None = None  # delegation tokens; None: not served
    changes: StoredIdentities | None = None  # None: identities cannot be changed
    throttler: Throttler = field(default_factory=Throttler)
    quotas: TenantQuotas | None = None  # None: no tenant has quotas
    usage: KafkaUsage | None = None  # None: usage is not counted
    audit: AuditTrail | None = None  # None: no audit trail
    account: str = ""  # of the tenant; if empty, that of the node
    parked: WaitingFetches = field(default_factory=WaitingFetches)
    fetch_sessions: FetchSessions = field(default_factory=FetchSessions)
    share_sessions: ShareSessions = field(default_factory=ShareSessions)
    share_releases: set[asyncio.Task[None]] = field(default_factory=set)  # tasks that are running
    nodes: Brokers | None = None  # None: this node is the only one
    joined: KafkaCluster | None = None  # the cluster; None: a single node
    dynamic: DynamicConfigs
    volume: Callable[[], tuple[int, int]] = lambda: (-1, -1)  # total and free bytes of the disk
    level: Callable[[], int] = lambda: LEVEL_MAX  # the current feature level
    login_seed: bytes = b""  # secret for salts of unknown users; if empty, random at each start
    defaults: TopicDefaults = field(init=False)  # for topics without a value
    brokers: Brokers = field(init=False)
    cluster: KafkaCluster = field(init=False)
    decisions: Decisions = field(init=False)
    logins: Logins = field(init=False)

    def __post_init__(self) -> None:
        self.account = self.account or self.config.account
        self.decisions = Decisions(self.identities)
        self.defaults = self.dynamic.defaults
        self.brokers = self.nodes or Brokers(self.config.node_id, self.config.advertised)
        self.cluster = self.joined or KafkaCluster(self.config.node_id, self.broker)
        passwords = Passwords(
            identities=self.identities,
            own_account=self.config.account,
            entropy=self.entropy,
            seed=self.login_seed,
            clock=self.clock,
            tokens=self.tokens,
        )
        self.logins = Logins(self.config, passwords, self.quotas)

    def of(self, account: str) -> KafkaContext:
        """Return the context of a tenant. Must be called on the context of the node's tenant."""
        own = self.config.account
        tenants = copy(self)
        tenants.account = account
        tenants.groups = ScopedGroups(self.groups, account=account, own_account=own)
        tenants.transactions = ScopedCoordinators(
            self.transactions, account=account, own_account=own
        )
        return tenants


class KafkaCall(ByIdentity):
    context: KafkaContext
    header: RequestHeader
    api: Api
    connection: KafkaConnection
    caller: Caller
    _turns: Turns | None = None
    _slices: Slices | None = None

    @property
    def slices(self) -> Slices:
        if self._slices is None:
            self._slices = Slices(self._turns or Turns())
        return self._slices

    @property
    def is_long(self) -> bool:
        return self._slices is not None and self._slices.is_long

    @property
    def version(self) -> int:
        return self.header.api_version

    @property
    def client_id(self) -> str:
        return self.header.client_id or ""

    @property
    def client_host(self) -> str:
        """Return the client's address with a slash before it, as group descriptions show it."""
        return "/" + self.connection.peer

    @property
    def account(self) -> str:
        return self.caller.account

    def circumstances(self) -> Circumstances:
        connection = self.connection
        return Circumstances(connection.peer, connection.is_tls, self.context.clock.wall_ms())

    async def by_topic(
        self,
        topics: Iterable[Any],
        kind: Callable[..., T],
        reply: Callable[[Any, Any], Awaitable[object]],
        find: Callable[[Any], object] = lambda topic: topic,
    ) -> list[T]:
        """Call ``reply`` for each partition of the topics, with the result of ``find(topic)`` and
        the partition. Return one ``kind`` per topic, made from the topic's name and its replies."""
        replies = []
        async for topic in self.slices.each(topics):
            (name, partitions, *_), found = astuple(topic), find(topic)
            results = [await reply(found, one) async for one in self.slices.each(partitions)]
            replies.append(kind(name, results))
        return replies


# Handles the requests of one API: gets a decoded request and returns the response, or None if the
# client wants no reply. A handler reports errors in the response, in the field and for the part of
# the request that they are about, or raises an ApiError about the whole request. Any other
# exception ends the connection.
Handler = Callable[[KafkaCall, Any], Coroutine[Any, Any, Any]]
