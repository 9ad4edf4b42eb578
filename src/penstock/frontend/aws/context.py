"""``Context`` has the objects that stages and actions of all SQS requests use, and lives as long as
the frontend. ``Call`` is one request, to which each stage adds its results. The caches in this
module are small, and losing them does no harm."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, cast

from penstock.access.decisions import Decisions
from penstock.flow.leaky_bucket import LeakyBucket
from penstock.frontend.aws.couriers import Couriers
from penstock.frontend.aws.protocols import Codec
from penstock.frontend.encryption.sealing import Sealing
from penstock.frontend.facts.usage import Counts, Meter
from penstock.frontend.limited_calls import queues_of
from penstock.frontend.limits.quotas import TenantQuotas
from penstock.frontend.limits.throttler import RequestLimits, Throttler
from penstock.model.calls import BrokerCall, BrokerPort
from penstock.model.errors import PenstockError, PurgeInProgress, TopicNotFound
from penstock.model.identity import AccessKey, Caller, KeyStatus, Tenant
from penstock.model.levels import LEVEL_MAX
from penstock.model.limits import (
    BATCH_ENTRIES_MAX,
    MINUTE_MS,
    PURGE_INTERVAL_MS,
    QUEUE_PARTITIONS_MAX,
)
from penstock.model.names import ACCOUNT_DEFAULT, REGION_DEFAULT, SHARE_MARK, is_account
from penstock.model.ports import (
    AddressBooks,
    Catalog,
    Clock,
    Identities,
    KeyRing,
    Subscriptions,
)
from penstock.model.subscription import Subscription
from penstock.model.topic import Topic
from penstock.net.http.exchange import HttpRequest
from penstock.wire.aws import queue_urls, sigv4
from penstock.wire.aws.faults import Fault, fault, invalid_value, missing
from penstock.wire.aws.queue_urls import QueueAddress
from penstock.wire.aws.shapes import BatchResultErrorEntry, QueueRequest, Request
from penstock.wire.aws.sigv4 import CredentialScope, SigningKey

PURGES_MAX: Final = 10_000  # queues to remember; for a forgotten one the broker still checks
ROTATIONS_MAX: Final = 10_000  # topics to remember
GRANTS_MAX: Final = 20_000  # about 500 bytes each; the cache is cleared when it is full
SIGNERS_MAX: Final = 10_000  # of each cache; about 1 KiB each
_NO_SECRET: Final = b"0" * 40
UNKNOWN_CALLER: Final = Caller("", "")  # has no rights

AdminUrl = str | Callable[[], str | None] | None


# ── Grants: authorized requests ──────────────────────────────────────────────────────────────
# Most requests repeat an earlier one with the same caller, action and queue URL. For these, one
# lookup returns the queue, the tenant, its limits and its usage counters. A grant is kept only if
# the decision did not depend on the address, the transport or the time. Any change of identities
# clears the cache. A grant is valid only while the catalog has the same topic object.

GrantKey = tuple[str, str, str, str, str]  # account, user, permission, URL as given, region


@dataclass(slots=True, eq=False)
class Grant:
    topic: Topic
    arn: str  # of the topic
    tenant: Tenant | None  # the caller's
    limits: RequestLimits | None = None  # set by throttling
    counts: Counts | None = None  # set by metering, for one minute
    counts_minute_ms: int = 0


class Grants:
    def __init__(self, identities: Identities) -> None:
        self._identities = identities
        self._epoch = identities.epoch
        self._grants: dict[GrantKey, Grant] = {}

    def find(self, key: GrantKey) -> Grant | None:
        epoch = self._identities.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._grants.clear()
        return self._grants.get(key)

    def add(self, key: GrantKey, topic: Topic) -> Grant:
        """Cache an authorization. ``find`` must be called first, without an await in between."""
        assert self._epoch == self._identities.epoch, "find() was called first"
        if len(self._grants) >= GRANTS_MAX:
            self._grants.clear()
        grant = self._grants[key] = Grant(topic, topic.arn, self._identities.tenant(key[0]))
        return grant


# ── Signers: access keys prepared for verification ───────────────────────────────────────────
# Signing keys are slow to derive, so they are cached until the identities change. An unknown access
# key gets a signing key as well, so that rejecting it takes as long as rejecting a wrong signature.
# Unknown keys have their own cache, so that a flood of them does not evict real ones.


@dataclass(slots=True, eq=False, repr=False)  # no repr, because it has a secret
class Signer:
    caller: Caller
    key: AccessKey | None
    signing_key: SigningKey
    sender: str  # SenderId of messages
    is_known: bool = False  # the access key exists and is active
    is_suspended: bool = False
    is_usable: bool = False
    noted_at_ms: int = 0

    def check(self, *, is_genuine: bool) -> None:
        if not self.is_known:
            raise fault("InvalidClientTokenId")
        if not is_genuine:
            raise fault("SignatureDoesNotMatch")
        if self.is_suspended:
            raise fault("AccessDenied", f"The account {self.caller.account} is suspended.")


class Signers:
    def __init__(self, identities: Identities) -> None:
        self._identities = identities
        self._epoch = identities.epoch
        self._known: dict[tuple[str, str, str, str], Signer] = {}
        self._unknown: dict[tuple[str, str, str, str], Signer] = {}

    def of(self, scope: CredentialScope) -> Signer:
        epoch = self._identities.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._known.clear()
            self._unknown.clear()
        key = (scope.access_key, scope.date, scope.region, scope.service)
        signer = self._known.get(key) or self._unknown.get(key)
        if signer is None:
            signer = self._make(scope)
            cache = self._unknown if signer.key is None else self._known
            if len(cache) >= SIGNERS_MAX:
                cache.clear()
            cache[key] = signer
        return signer

    def note_used(self, signer: Signer, *, now_ms: int) -> None:
        if now_ms - signer.noted_at_ms >= MINUTE_MS and signer.key is not None:
            signer.noted_at_ms = now_ms
            self._identities.note_used(signer.key, now_ms=now_ms)

    def _make(self, scope: CredentialScope) -> Signer:
        identities = self._identities
        key = identities.key(scope.access_key)
        if key is None:
            return Signer(UNKNOWN_CALLER, None, sigv4.signing_key(_NO_SECRET, scope), ":")
        tenant = identities.tenant(key.account)
        user = identities.user(key.account, key.user)
        is_known = user is not None and tenant is not None and key.status is KeyStatus.ACTIVE
        is_suspended = tenant is not None and tenant.is_suspended
        is_operator = user is not None and user.is_operator
        caller = Caller(key.account, key.user, key.key_id, is_operator=is_operator)
        signing_key = sigv4.signing_key(identities.secret(key), scope)
        sender, is_usable = f"{key.account}:{key.user}", is_known and not is_suspended
        return Signer(caller, key, signing_key, sender, is_known, is_suspended, is_usable)


@dataclass(frozen=True, slots=True)
class FrontendConfig:
    account: str = ACCOUNT_DEFAULT
    region: str = REGION_DEFAULT  # for requests without a region in the signature or host name
    external_url: str | None = None  # scheme://host[:port] in queue URLs
    is_dev: bool = True  # allows a reset, if authentication is off
    is_auth_on: bool = False  # off: any credentials are accepted, or none
    recreate_guard_ms: int = 0  # how long the name of a deleted queue stays reserved; 0: not at all
    partitions_default: int = 1
    sns_retention_ms: int | None = None  # of new SNS topics; None: as for other streams
    # A callable, because the admin listener may get its port later.
    admin_url: AdminUrl = None
    kafka_url: str | None = None  # such as SASL_SSL://127.0.0.1:9092, for CLI commands

    def __post_init__(self) -> None:
        is_valid = 1 <= self.partitions_default <= QUEUE_PARTITIONS_MAX
        assert is_valid, "partitions_default out of range"


class Rotation:
    """Selects a partition for each request to a standard queue, in turn (round robin). A batch goes
    to a single partition, so it needs only one append and one disk sync."""

    def __init__(self) -> None:
        # By topic: with a single counter, a client that alternates between two queues would use
        # only every second partition of each.
        self._next: dict[str, int] = {}

    def next(self, topic: Topic) -> int:
        count = topic.partition_count
        if count == 1:
            return 0
        partition = self._next.get(topic.topic_id, 0)
        if partition == 0 and len(self._next) >= ROTATIONS_MAX:
            self._next.clear()
        self._next[topic.topic_id] = partition + 1 if partition + 1 < count else 0
        return partition


class PurgeGuard:
    def __init__(self) -> None:
        self._purged_at_ms: dict[str, int] = {}  # oldest first

    def begin(self, topic_id: str, *, name: str, now_ms: int) -> None:
        """Record a purge. Raises PurgeInProgress if the queue was purged less than a minute ago."""
        entries = self._purged_at_ms
        purged_at_ms = entries.get(topic_id)
        if purged_at_ms is not None and now_ms - purged_at_ms < PURGE_INTERVAL_MS:
            text = f"Only one PurgeQueue operation on {name} is allowed every 60 seconds."
            raise PurgeInProgress(text)
        entries.pop(topic_id, None)
        while entries:
            oldest, purged_at_ms = next(iter(entries.items()))
            if now_ms - purged_at_ms < PURGE_INTERVAL_MS and len(entries) < PURGES_MAX:
                break
            del entries[oldest]
        entries[topic_id] = now_ms

    def cancel(self, topic_id: str) -> None:
        self._purged_at_ms.pop(topic_id, None)

    def clear(self) -> None:
        self._purged_at_ms.clear()


async def _nothing() -> None: ...


@dataclass(eq=False, kw_only=True)
class Context:
    broker: BrokerPort  # the brokers of all nodes
    everything: Catalog  # all topics
    subscriptions: Subscriptions
    books: AddressBooks | None = None  # of mobile apps and phone numbers
    couriers: Couriers | None = None  # to phones, mobile apps and mailboxes
    clock: Clock
    config: FrontendConfig
    meter: Meter
    entropy: Callable[[int], bytes]
    identities: Identities
    sealing: Sealing | None = None  # None: no key ring, so no encryption
    throttler: Throttler = field(default_factory=Throttler)  # shared with the other protocols
    quotas: TenantQuotas | None = None
    ring: KeyRing | None = None  # encrypts the passwords of endpoints
    token_key: bytes = b""  # signs the tokens by which endpoints confirm subscriptions
    # Whether the URL of an account may become an endpoint.
    is_usable: Callable[[str, str], bool] = lambda _url, _account: True
    # Creates the key that signs messages, if there is none yet.
    prepare_key: Callable[[], Awaitable[object]] = _nothing
    # Called for a pending subscription that its endpoint should confirm, and after the deletion of
    # one that its endpoint can restore.
    confirm: Callable[[Subscription], None] = lambda _: None
    unsubscribed: Callable[[Subscription], None] = lambda _: None
    # Protocols besides queues and HTTP that are served, and whether their endpoints must confirm.
    relayed: Mapping[str, bool] = field(default_factory=dict)
    has_application: Callable[[str], bool] = lambda _: False  # an endpoint of a mobile app, by ARN
    certificate_of: Callable[[str], str | None] = lambda _: None  # in PEM format, by its id
    level: Callable[[], int] = lambda: LEVEL_MAX  # the feature level in force
    reset_at_ms: int = 0  # names of queues deleted before are not reserved

    def __post_init__(self) -> None:
        self.catalog: Catalog = queues_of(self.everything)
        self.rotation = Rotation()
        self.purges = PurgeGuard()
        self.scopes: dict[str, CredentialScope] = {}  # bounded by incoming.py
        self.trusted: dict[str, Caller] = {}  # bounded by incoming.py
        self.signers = Signers(self.identities)
        self.decisions = Decisions(self.identities, postpones=True)
        self.grants = Grants(self.identities)


@dataclass(slots=True, eq=False)
class Action:
    name: str
    run: "Run"
    permission: str  # the name in policies, limits and usage, which is the same for a batch


UNKNOWN_ACTION: Final = Action("unknown", cast(Any, None), "")  # never run


@dataclass(slots=True, eq=False)
class Call:
    context: Context
    http: HttpRequest
    codec: Codec  # encodes the reply; known before anything can fail
    # set by identify: the unverified signature
    scope: CredentialScope | None = None
    scope_fault: Fault | None = None  # why the signature cannot be parsed
    body_hash: str = ""  # SHA-256 of a large body, which is hashed in pieces
    # set by decode, the action also by identify
    action: Action = UNKNOWN_ACTION
    request: Request | None = None
    # set by authenticate: the caller, its account and region, and the SenderId of messages
    caller: Caller = UNKNOWN_CALLER
    account: str = ""
    region: str = ""
    sender: str = ""
    # set by authorize: action and queue as in policies. Empty for a trusted caller; ``arn`` is also
    # empty for an action that is not about one queue.
    permission: str = ""
    arn: str = ""
    grant: Grant | None = None  # the cached authorization
    origin_arns: tuple[str, ...] = ()  # queues to which StartMessageMoveTask may send
    topic: Topic | None = None  # the queue, if it was found and nothing was awaited since
    # set by throttle: the bucket for the bytes of messages, once their size is known
    bytes_bucket: LeakyBucket | None = None
    charged_at_ms: int = 0  # when the request came or, if it waited, when its wait ended

    def queue(self) -> QueueAddress | None:
        """Return the queue named in the request, which may not exist; None if no queue is named."""
        request = self.request
        if isinstance(request, QueueRequest):
            try:
                return queue_urls.parse(request.queue_url or "")
            except Fault:
                return None
        name = getattr(request, "queue_name", None) or getattr(request, "source_arn", None)
        if not name:
            return None
        owner = getattr(request, "queue_owner_aws_account_id", None)
        account = owner if owner and is_account(owner) else None
        return queue_urls.parse_arn(name) or QueueAddress(account, None, name)


Run = Callable[[Call, Any], Coroutine[Any, Any, Any]]


# ── Queue URLs, sequence numbers and batch entries ───────────────────────────────────────────
# Only the path of a queue URL is used, because proxies and containers give this node unknown host
# names. The region comes from the signature, else from the URL, else from the settings. A sequence
# number has 17 digits for the offset and 3 for the partition, so those of a message group increase.

T = TypeVar("T")
R = TypeVar("R")
Parts = Mapping[int, Sequence[tuple[int, T]]]  # partition → (index of the entry, its value)
_ID: Final = re.compile(r"[!-~]{1,128}\Z")  # letters, digits and ASCII punctuation, no space
_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}\Z")


def topic_of(call: Call, queue_url: str | None) -> Topic:
    if not queue_url:
        raise missing("QueueUrl")
    address = queue_urls.parse(queue_url)
    region = call.region if call.scope is not None else address.region or call.region
    topic = call.context.catalog.find(address.account or call.account, region, address.name)
    if topic is None:
        raise TopicNotFound(address.name)
    return topic


def read_only(topic: Topic) -> Fault:
    source, _, _ = topic.name.partition(SHARE_MARK)
    text = f"{topic.name} is a read-only share; send to {source} instead."
    return fault("UnsupportedOperation", text)


def url_of(call: Call, topic: Topic) -> str:
    """Return the URL of a queue, by default with the host name that the client has used."""
    base_url = call.context.config.external_url
    if base_url is None:
        scheme = "https" if call.http.is_tls else "http"
        base_url = f"{scheme}://{call.http.headers.get('host', 'localhost')}"
    return queue_urls.build(base_url, account=topic.account, name=topic.name)


def invalid(message: str) -> Fault:
    return fault("InvalidParameterValue", message)


def sequence_number(partition: int, offset: int) -> str:
    assert partition < 1_000, "three digits hold the partition"
    return f"{offset:017d}{partition:03d}"


def check_id(text: str, parameter: str) -> str:
    if _ID.match(text) is None:
        reason = f"{parameter} can only include alphanumeric and punctuation characters."
        raise invalid_value(text, parameter, f"{reason} 1 to 128 in length.")
    return text


class Entry(Protocol):
    id: str | None


def check_entries(entries: Sequence[Entry], *, entry_name: str) -> None:
    if not entries:
        text = f"There should be at least one {entry_name} in the request."
        raise fault("EmptyBatchRequest", text)
    if len(entries) > BATCH_ENTRIES_MAX:
        text = f"Maximum number of entries per request are {BATCH_ENTRIES_MAX}."
        raise fault("TooManyEntriesInBatchRequest", f"{text} You have sent {len(entries)}.")
    seen: set[str] = set()
    for entry in entries:
        if entry.id is None:
            raise missing(f"{entry_name}.Id")
        if _ENTRY_ID.match(entry.id) is None:
            raise fault("InvalidBatchEntryId")
        if entry.id in seen:
            raise fault("BatchEntryIdsNotDistinct", f"Id {entry.id} repeated.")
        seen.add(entry.id)


def failed(entry: Entry, error: Fault) -> BatchResultErrorEntry:
    return BatchResultErrorEntry(
        id=entry.id or "", sender_fault=error.is_sender, code=error.code, message=error.message
    )


async def call_partitions(
    broker: BrokerPort,
    parts: Parts[T],
    call_of: Callable[[int, Sequence[T]], BrokerCall[Sequence[R]]],
) -> dict[int, R | PenstockError]:
    """Call all partitions concurrently, and return the results by index of the batch entry. If a
    partition fails, its entries have the error as result. Raises an error only if all fail."""
    results: dict[int, R | PenstockError] = {}
    failures: list[PenstockError] = []

    async def one(partition: int, entries: Sequence[tuple[int, T]]) -> None:
        try:
            found = await broker.call(call_of(partition, [value for _, value in entries]))
        except PenstockError as error:
            failures.append(error)
            results.update((index, error) for index, _ in entries)
            return
        results.update((index, each) for (index, _), each in zip(entries, found, strict=True))

    if len(parts) == 1:
        [(partition, entries)] = parts.items()
        await one(partition, entries)
    else:
        async with asyncio.TaskGroup() as tasks:
            for partition, entries in parts.items():
                tasks.create_task(one(partition, entries), name=f"batch in partition {partition}")
    if failures and len(failures) == len(parts):
        raise failures[0]
    return results
