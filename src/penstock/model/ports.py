"""The interfaces between frontend, broker and the other roles. In one process the implementations
are plain objects, in a cluster they are remote; ``node/compose.py`` chooses."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from penstock.model.acls import AclIndex
from penstock.model.address_book import PlatformApplication, PlatformEndpoint, SmsBook
from penstock.model.file_slice import Piece
from penstock.model.identity import AccessKey, ScramCredential, Tenant, User
from penstock.model.message import Record
from penstock.model.subscription import Subscription, SubscriptionState
from penstock.model.topic import PeekState, QueueSettings, Topic


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Return the milliseconds since 1970, for timestamps and retention. The clock may jump."""

    def mono_ms(self) -> int:
        """Return the milliseconds of a monotonic clock, for leases and delays."""


class LeaseRequest(msgspec.Struct, frozen=True):
    count: int = 1
    lease_ms: int = 30_000
    wait_ms: int = 0
    attempt_id: str | None = None  # FIFO: the same id gets the same deliveries again
    group_max: int = 0  # FIFO: most messages of one group; 0: no maximum


class Peeked(msgspec.Struct, frozen=True):
    partition: int
    record: Record
    state: PeekState
    attempts: int = 0  # leases in all queues that the message has been in
    until_ms: int | None = None  # end of the lease or delay, or of the blocking lease
    blocked_by: int | None = None  # FIFO: offset of the message in flight that locks the group


class MoveTask(msgspec.Struct, frozen=True, omit_defaults=True):
    task_id: str
    source_arn: str
    destination_arn: str | None
    rate_per_s: int | None
    status: str  # RUNNING COMPLETED CANCELLING CANCELLED FAILED
    started_at_ms: int
    moved: int = 0
    to_move: int = 0
    failure_reason: str | None = None
    # Without a destination, the queues that the caller may send to. None for a task of an older
    # version: then all queues that send their dead letters to the source.
    origin_arns: tuple[str, ...] | None = None


class Marker(msgspec.Struct, frozen=True, gc=False):
    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int = 0


class ProducerSeen(msgspec.Struct, frozen=True, gc=False):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    seen_at_ms: int  # wall clock
    coordinator_epoch: int
    transaction_start: int  # first offset of the open transaction


class StreamEnds(msgspec.Struct, frozen=True, gc=False):
    """The start offset of a partition, and the offsets up to which consumers may read."""

    start_offset: int
    high_watermark: int
    last_stable_offset: int  # start of the first open transaction
    leader_epoch: int = 0
    is_settled: bool = True  # False: a new leader does not know yet how much is committed


class BatchAppended(msgspec.Struct, frozen=True, gc=False):
    base_offset: int
    appended_at_ms: int  # -1: the records keep the timestamps of the producer
    start_offset: int
    is_duplicate: bool = False


class Fetched(msgspec.Struct, frozen=True, gc=False):
    ends: StreamEnds
    # Whole batches in order, as file slices if requested; the first may begin before the requested
    # offset.
    buffers: Sequence[Piece] = ()
    next_offset: int = -1  # the offset after the last batch; -1 if there is none
    record_count: int = 0  # without control batches
    aborted: Sequence[tuple[int, int]] = ()  # (producer id, first offset), for committed reads


SETTINGS_DEFAULT = QueueSettings()
NO_TAGS: Mapping[str, str] = {}
EARLIEST = -2  # instead of an offset: the first record
LATEST = -1  # instead of an offset: after the last record


class Acquired(msgspec.Struct, frozen=True, gc=False):
    start_offset: int  # all records below are finished for this group
    batches: Sequence[bytes]  # whole batches in order, which may contain other records too
    picks: Sequence[tuple[int, int, int]] = ()  # (offset, lease_seq, attempt), ascending


class PushStatus(msgspec.Struct, frozen=True, gc=False):
    """What the home of a subscription knows about it. Times are of the wall clock; 0: never."""

    limit: int = 0  # requests that may be in progress
    in_flight: int = 0
    is_breaker_open: bool = False  # after failures, only single requests are tried
    retries: int = 0  # messages that wait for another attempt
    failing_since_ms: int = 0  # of the first failure after the last success
    delivered_at_ms: int = 0
    failed_at_ms: int = 0
    reason: str = ""  # of the last failure


class PushReply(msgspec.Struct, frozen=True, gc=False):
    """The result of one request to an endpoint."""

    status: int = 0  # of HTTP; 0: there was no reply
    duration_ms: int = 0
    reason: str = ""  # why there was no reply
    body: str = ""  # beginning of the reply


class Catalog(Protocol):
    """All topics, kept in memory. A change is stored and visible when the call returns."""

    def find(self, account: str, region: str, name: str) -> Topic | None: ...

    def find_arn(self, arn: str) -> Topic | None: ...

    def find_id(self, topic_id: str) -> Topic | None: ...

    def topics(self, account: str, region: str, prefix: str = "") -> Sequence[Topic]: ...

    def find_sns(self, account: str, region: str, name: str) -> Topic | None:
        """Return the stream of an SNS topic."""

    def sns_topics(
        self, account: str, region: str, *, start: int = 0, count: int | None = None
    ) -> Sequence[Topic]:
        """Return SNS topics in the order of their names: ``count`` of them, or all, without the
        first ``start``."""

    def all_topics(self) -> Sequence[Topic]: ...

    def recently_deleted(self, account: str, region: str, name: str, *, now_ms: int) -> bool: ...

    def tombstone(self, topic_id: str) -> Topic | None:
        """Return the topic with this id if it was deleted in the last few minutes, else None."""

    async def create(self, topic: Topic) -> Topic: ...

    async def change(
        self, account: str, region: str, name: str, change: Callable[[Topic], Topic]
    ) -> Topic:
        """Replace a topic by ``change(topic)``. After a conflict, ``change`` is called again."""

    async def delete(self, account: str, region: str, name: str, *, now_ms: int) -> Topic: ...

    def on_change(self, listener: Callable[[Topic | None, Topic | None], None]) -> None:
        """Call ``listener`` with the topic before and after each change by any node."""


class Subscriptions(Protocol):
    """All subscriptions, kept in memory. A change is stored and visible when the call returns. Only
    ``count`` and ``change`` know subscriptions whose state is DELETED."""

    def find(self, subscription_id: str) -> Subscription | None: ...

    def find_endpoint(self, topic_id: str, protocol: str, endpoint: str) -> Subscription | None: ...

    async def learn(self, subscription_id: str) -> Subscription | None:
        """Like ``find``, but read the store if memory has none: it may have just been created."""

    def of_topic(self, topic_id: str) -> Collection[Subscription]: ...

    def page(
        self, account: str, region: str, *, after: str = "", count: int
    ) -> Sequence[Subscription]:
        """Return up to ``count`` subscriptions after the id ``after``, ordered by id."""

    def page_of_topic(
        self, topic_id: str, *, after: str = "", count: int
    ) -> Sequence[Subscription]: ...

    def count(self, topic_id: str, state: SubscriptionState) -> int: ...

    async def create(self, new: Subscription) -> Subscription:
        """Store a subscription. If its topic has one for the same endpoint and protocol, nothing is
        changed and that one is returned, which has another id. Raises QuotaExceeded if there are
        too many."""

    async def change(
        self, subscription_id: str, change: Callable[[Subscription], Subscription]
    ) -> Subscription:
        """Replace a subscription by ``change(subscription)``, which is called again if memory was
        out of date. It may set the state to DELETED and back. Raises NotFound if there is no such
        subscription."""

    async def delete(self, subscription_id: str) -> None:
        """Delete a subscription for good. Does nothing if there is none."""

    async def delete_of_topic(self, topic_id: str) -> int:
        """Delete all subscriptions of a deleted topic, and return their number."""

    async def delete_all(self) -> int: ...

    def on_change(
        self, listener: Callable[[Subscription | None, Subscription | None], None]
    ) -> None:
        """Call ``listener`` with the subscription before and after each change by any node."""


class AddressBooks(Protocol):
    """SNS address books of all tenants, kept in memory. A change is stored and visible when the
    call returns. An application is identified by account, region, platform and name."""

    def application(self, key: tuple[str, str, str, str]) -> PlatformApplication | None: ...

    def applications(
        self, account: str, region: str, *, after: tuple[str, str], count: int
    ) -> Sequence[PlatformApplication]:
        """Return up to ``count`` applications after a platform and name, in their order."""

    def secrets(self, application: PlatformApplication) -> dict[str, str]:
        """Return the credentials of an application."""

    def with_secrets(
        self, application: PlatformApplication, secrets: dict[str, str]
    ) -> PlatformApplication: ...

    async def create_application(self, new: PlatformApplication) -> PlatformApplication:
        """Store an application. If there is one with its name, return that one unchanged. Raises
        QuotaExceeded, as all other changes do."""

    async def change_application(
        self,
        key: tuple[str, str, str, str],
        change: Callable[[PlatformApplication], PlatformApplication],
    ) -> None:
        """Replace an application by ``change(application)``, which may be called again. Raises
        NotFound."""

    async def delete_application(self, key: tuple[str, str, str, str]) -> None:
        """Delete an application and its endpoints. Does nothing if there is none."""

    def endpoint(self, account: str, region: str, endpoint_id: str) -> PlatformEndpoint | None: ...

    def endpoints(
        self, key: tuple[str, str, str, str], *, after: str, count: int
    ) -> Sequence[PlatformEndpoint]:
        """Return up to ``count`` endpoints of an application after the id ``after``."""

    async def create_endpoint(self, new: PlatformEndpoint) -> PlatformEndpoint:
        """Store an endpoint. If its application has one with the same token, return that one."""

    async def change_endpoint(
        self,
        account: str,
        region: str,
        endpoint_id: str,
        change: Callable[[PlatformEndpoint], PlatformEndpoint],
    ) -> None:
        """Replace an endpoint by ``change(endpoint)``, which may be called again. Raises NotFound,
        or Conflict if another endpoint has the new token."""

    async def delete_endpoint(self, account: str, region: str, endpoint_id: str) -> None: ...

    def sms(self, account: str, region: str) -> SmsBook: ...

    async def change_sms(
        self, account: str, region: str, change: Callable[[SmsBook], SmsBook]
    ) -> None: ...

    async def delete_all(self) -> None: ...


Sleep = Callable[[float], Awaitable[None]]


class KeyRing(Protocol):
    """The master keys, which encrypt small secrets and data keys."""

    @property
    def master_id(self) -> str: ...

    def wrap(self, secret: bytes, *, context: bytes) -> bytes:
        """Encrypt a secret. The same ``context`` is needed to decrypt it."""

    def unwrap(self, wrapped: bytes, *, context: bytes) -> bytes: ...


class Identities(Protocol):
    def tenant(self, account: str) -> Tenant | None: ...

    def tenants(self) -> Sequence[Tenant]: ...

    def user(self, account: str, name: str) -> User | None: ...

    def users(self, account: str) -> Sequence[User]: ...

    def key(self, key_id: str) -> AccessKey | None: ...

    def keys(self, account: str, user: str) -> Sequence[AccessKey]: ...

    def secret(self, key: AccessKey) -> bytes: ...

    def scram(self, account: str, user: str, mechanism: str) -> ScramCredential | None: ...

    def iteration_counts(self, mechanism: str) -> Mapping[str, Mapping[int, int]]:
        """Return the numbers of users, by account and by the iteration count of their passwords.
        Users with more than SCRAM_ITERATIONS_MAX (from older versions) are left out."""

    def acls(self, account: str) -> AclIndex | None: ...

    @property
    def epoch(self) -> int:
        """A number that increases with every change, which makes older cached decisions invalid."""

    def note_used(self, key: AccessKey, *, now_ms: int) -> None: ...
