"""What every Kafka action may reach, handed down as one value, and what an action is.

A ``KafkaContext`` lives as long as the frontend; a ``KafkaCall`` lives for one request. Nothing
here decides anything. The ports that are the Kafka view's own stand here or next to it: the broker
implements them, and this side knows no more of it.

Kafka's names have no account. The names of a request are those of its caller's account: an action
is handed a context ``of`` that account, in which topics are looked up there and groups and
transactions are that account's alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.frontend.audit import AuditTrail
from penstock.frontend.context import Meter
from penstock.frontend.decisions import Decisions
from penstock.frontend.kafka.brokers import Brokers, SoleBroker
from penstock.frontend.kafka.cluster_port import KafkaCluster, SoleNode
from penstock.frontend.kafka.configs import Source, Synonym
from penstock.frontend.kafka.fetch_sessions import FetchSessions
from penstock.frontend.kafka.group_calls import GroupCalls
from penstock.frontend.kafka.identity_changes import IdentityChanges
from penstock.frontend.kafka.parked import ParkedFetches
from penstock.frontend.kafka.scoped_calls import ScopedGroups, ScopedTransactions
from penstock.frontend.kafka.share_sessions import ShareSessions
from penstock.frontend.kafka.token_calls import TokenCalls
from penstock.frontend.kafka.transaction_calls import TransactionCalls
from penstock.frontend.kafka.usage import KafkaUsage
from penstock.frontend.nobody import Nobody
from penstock.frontend.quotas import TenantQuotas
from penstock.frontend.sealing import Sealing
from penstock.frontend.slices import Slices, Turns
from penstock.frontend.throttle import Throttler
from penstock.metadata.dynamic_configs import DynamicConfigs
from penstock.model.identity import Caller, Circumstances
from penstock.model.levels import LEVEL_MAX
from penstock.model.names import ACCOUNT_DEFAULT, REGION_DEFAULT
from penstock.model.ports import Catalog, Clock, Identities, Shares, Streams
from penstock.model.stream import TopicDefaults
from penstock.net.kafka import KafkaConnection
from penstock.wire.kafka.apis import Api
from penstock.wire.kafka.frame import RequestHeader

if TYPE_CHECKING:
    from penstock.frontend.kafka.logins import Logins

PARTITIONS_MAX = 1_024  # of one topic; each costs open files and a log


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    # Where clients reach this node. The port may be known only once the listener has it.
    advertised: Callable[[], tuple[str, int]]
    node_id: int = 1
    cluster_id: str = ""
    account: str = ACCOUNT_DEFAULT  # the node's own: of callers who have said nothing of theirs
    region: str = REGION_DEFAULT
    auto_create: bool = True
    partitions_default: int = 1
    replicas_default: int = 1
    in_sync_min_default: int = 1
    # What DescribeLogDirs shows; a label for people, nothing is opened by it.
    log_dir: str = "data"
    is_auth_on: bool = False  # off: every client is believed, logged in or not
    is_insecure: bool = False  # passwords may be sent in the clear, from other machines as well
    login_ms: int = 0  # how long a log-in is good for; 0: as long as the connection
    protocol: str = "PLAINTEXT"  # as clients call what the listener speaks
    # What DescribeConfigs shows of settings that are not the frontend's own:
    listeners: Callable[[], str] = lambda: ""
    compaction_check_ms: int = 15_000
    connections_max: int = 20_000
    connections_per_ip_max: int = 0  # 0: no limit
    login_refusal_ms: int = 250  # how long every refused log-in takes, whatever is wrong with it

    def __post_init__(self) -> None:
        assert 1 <= self.partitions_default <= PARTITIONS_MAX, "partitions_default out of range"


class ProducerIds(Protocol):
    """Numbers for producers that want none of their batches twice."""

    async def next_id(self) -> int:
        """Never the same number again, not after a restart either; 0 or greater."""
        ...


@dataclass(slots=True, kw_only=True)
class KafkaContext:
    streams: Streams
    shares: Shares
    catalog: Catalog
    groups: GroupCalls
    transactions: TransactionCalls
    producer_ids: ProducerIds
    clock: Clock
    config: KafkaConfig
    meter: Meter
    entropy: Callable[[int], bytes]
    sealing: Sealing | None = None  # None: there is no key ring, and nothing is encrypted
    identities: Identities = field(default_factory=Nobody)
    tokens: TokenCalls | None = None  # delegation tokens; None: there are none
    changes: IdentityChanges | None = None  # of the identities; None: they cannot be changed here
    throttler: Throttler = field(default_factory=Throttler)
    quotas: TenantQuotas | None = None  # None: nobody has any
    usage: KafkaUsage | None = None  # None: nothing is counted for tenants
    audit: AuditTrail | None = None  # None: nothing is noted
    account: str = ""  # whose names these are; empty: the node's
    parked: ParkedFetches = field(default_factory=ParkedFetches)
    fetch_sessions: FetchSessions = field(default_factory=FetchSessions)
    share_sessions: ShareSessions = field(default_factory=ShareSessions)
    share_releases: set[asyncio.Task[None]] = field(default_factory=set)  # under way
    nodes: Brokers | None = None  # None: this node is the only one
    joined: KafkaCluster | None = None  # the cluster of this node; None: it is by itself
    dynamic: DynamicConfigs = field(default_factory=DynamicConfigs.detached)
    volume: Callable[[], tuple[int, int]] = lambda: (-1, -1)  # bytes of the disk, and of it free
    level: Callable[[], int] = lambda: LEVEL_MAX  # the feature level in force
    login_seed: bytes = b""  # for users that are not there; empty: drawn with each start
    defaults: TopicDefaults = field(init=False)  # of topics that set no value
    brokers: Brokers = field(init=False)
    cluster: KafkaCluster = field(init=False)
    decisions: Decisions = field(init=False)
    logins: Logins = field(init=False)  # by the pipeline

    def __post_init__(self) -> None:
        self.account = self.account or self.config.account
        self.decisions = Decisions(self.identities)
        self.defaults = self.dynamic.defaults
        self.brokers = self.nodes or SoleBroker(self.config.node_id, self.config.advertised)
        self.cluster = self.joined or SoleNode(self.config.node_id, self.streams)

    # ── What topics get that do not say so themselves (``configs.Defaults``) ─────────────────

    @property
    def replicas_default(self) -> int:
        return self.config.replicas_default

    @property
    def in_sync_min_default(self) -> int:
        return self.config.in_sync_min_default

    def set_for_brokers(self, name: str) -> Sequence[Synonym]:
        dynamic = self.dynamic
        found = (
            (dynamic.own.get(name), Source.BROKER),
            (dynamic.of_all.get(name), Source.ALL_BROKERS),
        )
        return [(name, value, source) for value, source in found if value is not None]

    def of(self, account: str) -> KafkaContext:
        """The same, as an account sees it. To be asked of the node's own context only."""
        own = self.config.account
        seen = copy(self)
        seen.account = account
        seen.groups = ScopedGroups(self.groups, account=account, own_account=own)
        seen.transactions = ScopedTransactions(self.transactions, account=account, own_account=own)
        return seen


class KafkaCall:
    """One request: its header, its connection, and who asks."""

    __slots__ = ("_slices", "_turns", "api", "caller", "connection", "header")

    def __init__(
        self,
        header: RequestHeader,
        api: Api,
        connection: KafkaConnection,
        caller: Caller,
        turns: Turns | None = None,
    ) -> None:
        self.header = header
        self.api = api
        self.connection = connection
        self.caller = caller
        self._turns = turns
        self._slices: Slices | None = None

    @property
    def slices(self) -> Slices:
        """For actions that work on many entries."""
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
        """As Kafka shows it in group descriptions, with its slash."""
        return "/" + self.connection.peer

    @property
    def account(self) -> str:
        return self.caller.account

    def circumstances(self, clock: Clock) -> Circumstances:
        connection = self.connection
        return Circumstances(connection.peer, connection.is_tls, clock.wall_ms())


class KafkaAction(msgspec.Struct, frozen=True):
    """One API. ``run`` gets the decoded request of that API and returns its response, or None when
    the client wants no answer. Both are open here and exact in each action's file.

    An action answers errors in its own response, in the field and for the part of the request
    they belong to. What it raises ends the connection."""

    key: int
    run: Callable[[KafkaContext, KafkaCall, Any], Coroutine[Any, Any, Any]]
