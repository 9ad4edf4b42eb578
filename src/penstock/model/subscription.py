"""A subscription: what Penstock sends from a topic or queue to a queue or another endpoint.

A topic has at most one subscription for an endpoint and protocol, even if two nodes create it at
the same moment. The id is made for this purpose. It looks like a random UUID:

    60 bits   hash of topic id, protocol and endpoint: the key of the entry in the metadata store
    62 bits   random, so that an id cannot be guessed, and a later subscription has another one

So the key of the entry follows from the id, and also from topic, protocol and endpoint, and the
store rejects a second entry by comparing versions."""

import re
from enum import StrEnum
from hashlib import blake2b
from typing import Final

import msgspec

from penstock.model import limits
from penstock.model.errors import InvalidRequest
from penstock.model.names import is_account, is_region, uuid_text

RANDOM_BYTES: Final = 8
REPLAYS_MAX: Final = 10  # of one subscription, completed ones included
SHARE_PREFIX: Final = "~"  # of groups whose shares belong to subscriptions
_PLACE_BYTES: Final = 8
_NUMBER_MAX: Final = 2**63 - 1

_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_ID = re.compile(rf"{_UUID}\Z")
_SHARE_GROUP = re.compile(rf"{SHARE_PREFIX}({_UUID})(\.[1-9][0-9]*)?\Z")
_PROTOCOL = re.compile(r"[a-z][a-z-]{0,31}\Z")


class SubscriptionState(StrEnum):
    PENDING = "pending"  # the endpoint has not confirmed yet: nothing is sent
    CONFIRMED = "confirmed"
    DELETED = "deleted"  # kept for CONFIRMATION_MS, so that the endpoint can restore it


class ReplayState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class Replay(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request to send old messages again, from one offset to another in each partition."""

    number: int  # of the subscription's replays, from 1
    starts: tuple[int, ...]
    until: tuple[int, ...]
    created_at_ms: int
    state: ReplayState = ReplayState.WAITING

    @property
    def is_open(self) -> bool:
        return self.state in (ReplayState.WAITING, ReplayState.RUNNING)


class WebhookPermission(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reply of an endpoint that was asked whether it wants the requests of a webhook."""

    is_given: bool
    rate_per_minute: int | None = None  # requests that the endpoint allows; None: no limit
    reason: str = ""  # why the permission is not given
    origin: str = ""  # DNS name that got the permission: each request repeats it


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """New fields must be added at the end and have a default."""

    id: str
    topic_id: str  # the topic or queue whose messages are sent
    source_arn: str  # ARN of the SNS topic, or of the queue or stream of a webhook
    account: str  # owner
    region: str
    protocol: str  # such as sqs, https, email
    endpoint: str  # queue ARN, URL, address; a password in a URL is in ``secrets`` instead
    created_at_ms: int
    state: SubscriptionState = SubscriptionState.PENDING
    principal: str = ""  # ARN of the user who subscribed
    attributes: dict[str, str] = {}  # by their AWS names, as given and checked
    confirmed_at_ms: int = 0
    deleted_at_ms: int = 0
    was_authenticated: bool = False  # the confirmation was signed, or none was needed
    needs_owner: bool = False  # only a signed request of an owner may unsubscribe
    base_url: str = ""  # beginning of links in messages, from the request that subscribed
    # The first offset to send, by partition, set at the confirmation. Partitions that were added
    # to the topic later are not listed, and are sent from their start.
    start_offsets: tuple[int, ...] = ()
    paused: str | None = None  # why nothing is sent, such as "restored"; None: not paused
    webhook: str = ""  # settings of a webhook as JSON
    secrets: bytes = b""  # wrapped by the key ring; the context is ``secrets_context``
    replays: tuple[Replay, ...] = ()  # oldest first, at most REPLAYS_MAX
    # Of a webhook whose endpoint is asked first. None: not asked, or it has not replied yet.
    permission: WebhookPermission | None = None

    @property
    def arn(self) -> str:
        return f"{self.source_arn}:{self.id}"

    @property
    def calls_out(self) -> bool:
        """Return whether messages leave the cluster. Copies in queues do not."""
        return self.protocol != "sqs"

    @property
    def needs_permission(self) -> bool:
        """Return whether the endpoint of a webhook must be asked, and has not replied yet."""
        is_pending = self.state is SubscriptionState.PENDING
        return is_pending and bool(self.webhook) and self.permission is None

    @property
    def open_replay(self) -> Replay | None:
        """Return the replay that is next or running. The others wait for it."""
        return next((each for each in self.replays if each.is_open), None)

    @property
    def secrets_context(self) -> bytes:
        return f"/subscriptions/{self.id}".encode()

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory, which limits count."""
        texts = sum(len(name) + len(text) for name, text in self.attributes.items())
        return len(self.endpoint) + texts + len(self.webhook) + len(self.secrets) + _FIXED_BYTES


def home_partition(one: Subscription) -> int:
    """Return the partition of the topic whose leader sends the messages of a subscription. It stays
    the same when partitions are added to the topic."""
    return int(one.id[:8], 16) % max(1, len(one.start_offsets))


def share_group(one: Subscription, replay: int = 0) -> str:
    """Return the name of the share that keeps the position and the retries of a subscription, or of
    one of its replays."""
    return f"{SHARE_PREFIX}{one.id}.{replay}" if replay else f"{SHARE_PREFIX}{one.id}"


def owner_of_share(group: str) -> str | None:
    """Return the id of the subscription to which a share belongs by the name of its group. Other
    groups may have names that begin like this: older versions allowed them."""
    found = _SHARE_GROUP.match(group)
    return None if found is None else found[1]


_NO_PERMISSION: Final = WebhookPermission(False)
_FIXED_BYTES: Final = 1_024  # fields of limited length, and the entry in indexes


def _place(topic_id: str, protocol: str, endpoint: str) -> bytearray:
    # The hash must never change: stored entries would no longer be found.
    described = "\0".join((topic_id, protocol, endpoint)).encode("utf-8", "surrogatepass")
    place = bytearray(blake2b(described, digest_size=_PLACE_BYTES).digest())
    place[6] = place[6] & 0x0F | 0x40  # version 4 of a UUID
    return place


def new_id(topic_id: str, protocol: str, endpoint: str, *, random: bytes) -> str:
    """Return a new id, for which ``random`` must be RANDOM_BYTES random bytes."""
    assert len(random) == RANDOM_BYTES
    variant = bytes((random[0] & 0x3F | 0x80,))  # as RFC 9562 requires of a UUID
    return uuid_text(bytes(_place(topic_id, protocol, endpoint)) + variant + random[1:])


def is_id(text: str) -> bool:
    return _ID.match(text) is not None


def place_of_id(subscription_id: str) -> str:
    """Return the part of an id that follows from topic, protocol and endpoint: 16 hex digits."""
    return subscription_id[:18].replace("-", "")


def place_of_endpoint(topic_id: str, protocol: str, endpoint: str) -> str:
    return _place(topic_id, protocol, endpoint).hex()


def check_subscription(one: Subscription) -> None:
    """Raise InvalidRequest if a subscription has invalid ids or exceeds a limit."""
    if not (is_account(one.account) and is_region(one.region)):
        raise InvalidRequest("A subscription has an invalid account or region.")
    if not is_id(one.id) or place_of_id(one.id) != place_of_endpoint(
        one.topic_id, one.protocol, one.endpoint
    ):
        raise InvalidRequest("The id of a subscription does not match its topic and endpoint.")
    if _PROTOCOL.match(one.protocol) is None:
        raise InvalidRequest("A subscription has an invalid protocol.")
    said = one.permission or _NO_PERMISSION
    texts = (
        *(one.endpoint, one.topic_id, one.source_arn, one.principal, one.base_url, one.paused),
        *(said.reason, said.origin),
    )
    if max(len(text or "") for text in texts) > limits.ENDPOINT_CHARS_MAX:
        raise InvalidRequest(
            f"Each text of a subscription can have at most {limits.ENDPOINT_CHARS_MAX:,}"
            " characters."
        )
    if len(one.attributes) > limits.SUBSCRIPTION_ATTRIBUTES_MAX:
        raise InvalidRequest(
            f"A subscription can have at most {limits.SUBSCRIPTION_ATTRIBUTES_MAX} attributes."
        )
    if len(one.start_offsets) > limits.SUBSCRIPTION_PARTITIONS_MAX:
        raise InvalidRequest(
            "A topic with subscriptions can have at most"
            f" {limits.SUBSCRIPTION_PARTITIONS_MAX:,} partitions."
        )
    if len(one.replays) > REPLAYS_MAX or any(
        max(len(each.starts), len(each.until)) > limits.SUBSCRIPTION_PARTITIONS_MAX
        for each in one.replays
    ):
        raise InvalidRequest(f"A subscription can have at most {REPLAYS_MAX} replays.")
    numbers = (one.created_at_ms, one.confirmed_at_ms, one.deleted_at_ms, *one.start_offsets)
    if not 0 <= min(numbers) <= max(numbers) <= _NUMBER_MAX:
        raise InvalidRequest("A subscription has an invalid time or offset.")
    if said.rate_per_minute is not None and not 0 < said.rate_per_minute <= _NUMBER_MAX:
        raise InvalidRequest("A subscription has an invalid rate.")
    try:
        size = len(msgspec.json.encode((one.attributes, one.webhook, one.secrets)))
        msgspec.json.encode(texts)
    except UnicodeEncodeError:
        raise InvalidRequest("A text of the subscription is not valid Unicode.") from None
    if size > limits.SUBSCRIPTION_BYTES_MAX:
        raise InvalidRequest(
            "The attributes and settings of a subscription must have at most"
            f" {limits.SUBSCRIPTION_BYTES_MAX:,} bytes as JSON, not {size:,}."
        )
