"""Client quotas: limits on the bytes per second that a user or client id sends to or fetches from
this node, and on the connections per second from an IP address. AlterClientQuotas sets them.

A quota belongs to an entity: a user, a client id, or a user with a client id. An entity may also be
the default for all users or client ids without a quota of their own. The stored name of an entity
is a text such as ``client-id=app&user=ann``. A part without ``=`` is the default. Each tenant has
its own quotas (``metadata/topics/resource_configs.py``) for its own clients. An IP address is an
entity too, but tenants share addresses, so only operators see and set quotas of addresses.

Bytes are counted in leaky buckets after each request. The reply to a client above its quota says
how long the client must pause, and the node does not read from the connection until then. A new
connection above its limit is closed at once. Each node counts separately, as in Kafka."""

import ipaddress
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from penstock.flow.leaky_bucket import LeakyBucket
from penstock.frontend.kafka.checks import check_cluster, check_operator
from penstock.frontend.kafka.configs.rows import INT_MAX, check_level, is_address
from penstock.frontend.kafka.context import KafkaCall
from penstock.frontend.kafka.errors import API_ERRORS, ApiError, error_fields, invalid_request
from penstock.frontend.kafka.permissions import Operation
from penstock.metadata.topics.resource_configs import (
    CLIENT_QUOTA,
    Configs,
    Resource,
    ResourceConfigs,
)
from penstock.model.errors import QuotaExceeded
from penstock.model.identity import Rate
from penstock.model.limits import CLIENT_NAME_CHARS_MAX, CLIENT_QUOTAS_PER_TENANT_MAX
from penstock.model.stream import LONG_MAX
from penstock.net.listener import source_of
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import alter_client_quotas as alter_wire
from penstock.wire.kafka.generated import describe_client_quotas as describe_wire

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
PRODUCED: Final = "producer_byte_rate"
FETCHED: Final = "consumer_byte_rate"
FETCH_SECONDS_MAX: Final = 10  # a fetch reply is limited to the quota of this time, as in Kafka
FOUND_MAX: Final = 20_000  # clients whose buckets are remembered; about 300 bytes each
BUCKETS_MAX: Final = 20_000  # above this number, empty buckets are dropped

Entity = tuple[tuple[str, str | None], ...]  # types with names, sorted; None: the default name
K = TypeVar("K")
CREATION_RATE: Final = "connection_creation_rate"
_DEFAULT: Final = ""  # stands for all addresses without a rate of their own
# The largest value of each quota. Quotas with a finite limit must be whole numbers.
_OF_CLIENTS: Final[Mapping[str, float]] = {
    PRODUCED: LONG_MAX,
    FETCHED: LONG_MAX,
    "request_percentage": math.inf,
    "controller_mutation_rate": math.inf,
}
_OF_ADDRESSES: Final[Mapping[str, float]] = {CREATION_RATE: INT_MAX}


def entity_text(entity: Entity) -> str:
    return "&".join(
        kind if name is None else f"{kind}={quote(name, safe='')}" for kind, name in entity
    )


def entity_of(text: str) -> Entity:
    parts = (part.partition("=") for part in text.split("&"))
    return tuple((kind, unquote(name) if mark else None) for kind, mark, name in parts)


def entities_of(user: str, client_id: str) -> Iterator[Entity]:
    """Yield the entities of a client, most specific first. The first one with a quota applies."""
    for one_user in (user, None):
        yield (CLIENT_ID, client_id), (USER, one_user)
        yield (CLIENT_ID, None), (USER, one_user)
        yield ((USER, one_user),)
    yield ((CLIENT_ID, client_id),)
    yield ((CLIENT_ID, None),)


class _Client(NamedTuple):
    account: str
    user: str
    client_id: str
    key: str  # name of the quota


class ClientQuotas:
    def __init__(self, stored: ResourceConfigs) -> None:
        self._stored = stored
        self._found: dict[_Client, LeakyBucket | None] = {}
        self._buckets: dict[_Client, LeakyBucket] = {}
        self.is_any = False  # whether any tenant has quotas; if not, callers skip everything else
        stored.on_change(CLIENT_QUOTA, self._look)
        self._look()

    def _look(self, *_changed: object) -> None:
        self._found.clear()
        self.is_any = bool(self._stored.accounts(CLIENT_QUOTA))

    def charge(
        self, account: str, user: str, client_id: str, key: str, size_bytes: int, *, now_ms: float
    ) -> int:
        """Count bytes that a client sent or fetched. Return how long it must pause, in ms."""
        bucket = self._bucket(_Client(account, user, client_id, key), now_ms)
        if bucket is None:
            return 0
        bucket.add(size_bytes, now_ms=now_ms)
        return bucket.wait_ms(0, now_ms=now_ms)

    def fetch_bytes_max(
        self, account: str, user: str, client_id: str, *, now_ms: float
    ) -> int | None:
        bucket = self._bucket(_Client(account, user, client_id, FETCHED), now_ms)
        return None if bucket is None else int(bucket.rate.per_s * FETCH_SECONDS_MAX)

    def _bucket(self, client: _Client, now_ms: float) -> LeakyBucket | None:
        try:
            return self._found[client]
        except KeyError:
            pass
        if len(self._found) >= FOUND_MAX:
            self._found.clear()
        bucket = None
        for entity in entities_of(client.user, client.client_id):
            resource = Resource(client.account, CLIENT_QUOTA, entity_text(entity))
            text = self._stored.get(resource).get(client.key)
            if text is None:
                continue
            kinds, per_s = dict(entity), float(text)
            # Clients of the same entity share a bucket.
            place = client._replace(
                user=client.user if USER in kinds else "",
                client_id=client.client_id if CLIENT_ID in kinds else "",
            )
            bucket = self._buckets.get(place)
            if bucket is None or bucket.rate.per_s != per_s:
                if len(self._buckets) >= BUCKETS_MAX:
                    self._found.clear()  # it may refer to dropped buckets
                    _drop_idle(self._buckets, now_ms)
                bucket = self._buckets[place] = LeakyBucket(Rate(per_s, per_s))
            break
        self._found[client] = bucket
        return bucket


def sorted_entity(parts: Sequence[tuple[str, str | None]]) -> Entity:
    return tuple(sorted(parts, key=lambda part: part[0]))


def _drop_idle(buckets: dict[K, LeakyBucket], now_ms: float) -> None:
    for key in [key for key, one in buckets.items() if one.is_idle(now_ms=now_ms)]:
        del buckets[key]
    if len(buckets) >= BUCKETS_MAX:
        buckets.clear()  # all are in use; each client may exceed its rate once


class ConnectionRates:
    def __init__(self, stored: ResourceConfigs, *, account: str) -> None:
        self._account = account  # of the nodes; quotas of addresses are stored there
        self._rates: dict[str, float] = {}  # by address
        self._buckets: dict[str, LeakyBucket] = {}  # by address; by network for the default
        self._all: LeakyBucket | None = None
        stored.on_change(CLIENT_QUOTA, self._changed)
        for name in stored.names(account, CLIENT_QUOTA):
            self._changed(account, name, stored.get(Resource(account, CLIENT_QUOTA, name)))

    def limit(self, per_s: int | None) -> None:
        """Limit the new connections per second of all addresses together. None means no limit."""
        if per_s is None:
            self._all = None
        elif self._all is None or self._all.rate.per_s != per_s:
            self._all = LeakyBucket(Rate(per_s, per_s))

    def admits(self, address: str, *, now_ms: float) -> bool:
        """Count a new connection and return True, or return False if it exceeds a limit."""
        found = (self._all, self._bucket(address, now_ms) if self._rates else None)
        buckets = [bucket for bucket in found if bucket is not None]
        if any(bucket.wait_ms(1, now_ms=now_ms) for bucket in buckets):
            return False
        for bucket in buckets:
            bucket.add(1, now_ms=now_ms)
        return True

    def _changed(self, account: str, name: str, configs: Configs) -> None:
        ((kind, address), *_) = entity_of(name)
        if account != self._account or kind != IP:
            return
        place = _DEFAULT if address is None else _plain(address)
        text = configs.get(CREATION_RATE)
        if text is None:
            self._rates.pop(place, None)
        else:
            self._rates[place] = float(text)
        self._buckets.clear()

    def _bucket(self, address: str, now_ms: float) -> LeakyBucket | None:
        place = _plain(address)
        per_s = self._rates.get(place)
        if per_s is None:
            place, per_s = source_of(address), self._rates.get(_DEFAULT)
        if per_s is None:
            return None
        bucket = self._buckets.get(place)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                _drop_idle(self._buckets, now_ms)
            bucket = self._buckets[place] = LeakyBucket(Rate(per_s, per_s))
        return bucket


def _plain(address: str) -> str:
    """Return the canonical text of an IP address. An IPv4-mapped IPv6 address becomes IPv4."""
    found = ipaddress.ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


async def alter(call: KafkaCall, request: alter_wire.Request) -> alter_wire.Response:
    named = [
        (sorted_entity([(part.entity_type, part.entity_name) for part in entry.entity]), entry)
        for entry in request.entries
    ]
    counts = Counter(entity for entity, _ in named)
    replies: dict[Entity, alter_wire.AlterClientQuotasResponseEntryData] = {}
    async for entity, entry in call.slices.each(named):
        fields: dict[str, Any] = {"error_message": None}
        try:
            if counts[entity] > 1:
                raise invalid_request("The request names this entity more than once.")
            await _alter(call, entity, entry, is_dry=request.validate_only)
        except API_ERRORS as error:
            fields = error_fields(error)
        parts = [alter_wire.AlterClientQuotasResponseEntityData(*part) for part in entity]
        replies[entity] = alter_wire.AlterClientQuotasResponseEntryData(**fields, entity=parts)
    return alter_wire.Response(entries=tuple(replies.values()))


async def _alter(
    call: KafkaCall,
    entity: Entity,
    entry: alter_wire.AlterClientQuotasRequestEntryData,
    *,
    is_dry: bool,
) -> None:
    check_cluster(call, Operation.ALTER_CONFIGS)
    account, keys = call.context.account, _OF_CLIENTS
    if IP in dict(entity):
        check_operator(call, Operation.ALTER_CONFIGS)
        account, keys = call.context.config.account, _OF_ADDRESSES
    _check_entity(entity)
    changes: dict[str, str | None] = {}
    for op in entry.ops:
        if op.key in changes:
            raise invalid_request(f"The request names the quota {op.key[:100]} more than once.")
        changes[op.key] = None if op.remove else _read(op, keys)
    resource = Resource(account, CLIENT_QUOTA, entity_text(entity))
    stored = call.context.dynamic.stored
    before = stored.get(resource)
    changed = {key: text for key, text in changes.items() if before.get(key) != text}
    if changed and not is_dry:
        check_level(call.context)
        count, most = len(stored.names(account, CLIENT_QUOTA)), CLIENT_QUOTAS_PER_TENANT_MAX
        if not before and account != call.context.config.account and count >= most:
            raise QuotaExceeded(
                f"Too many quotas: {count:,} users and client ids have quotas, and at most {most:,}"
                " are allowed. Remove some first."
            )
        await stored.change(resource, changed)


def _check_entity(entity: Entity) -> None:
    kinds = [kind for kind, _ in entity]
    if not entity:
        raise invalid_request("The entity is empty: name a user, a client-id or an ip.")
    if len(set(kinds)) < len(kinds):
        raise invalid_request(
            f"The entity has the same type more than once: {', '.join(kinds)[:100]}."
        )
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            raise invalid_request(f"Unknown entity type {kind[:100]!r}: use user, client-id or ip.")
        if name == "":
            raise invalid_request(f"The name of the {kind} is empty: send null for the default.")
        if name is not None and len(name) > CLIENT_NAME_CHARS_MAX:
            raise invalid_request(
                f"The name of the {kind} has {len(name):,} characters; at most"
                f" {CLIENT_NAME_CHARS_MAX} are allowed."
            )
    if IP in kinds and len(kinds) > 1:
        raise invalid_request("An ip cannot be combined with user or client-id.")
    address = dict(entity).get(IP)
    if address is not None and not is_address(address):
        raise invalid_request(f"{address[:100]!r} is not an IP address.")


def _read(op: alter_wire.OpData, keys: Mapping[str, float]) -> str:
    most = keys.get(op.key)
    if most is None:
        raise invalid_request(f"Unknown quota {op.key[:100]!r}: use one of {', '.join(keys)}.")
    if not 0 < op.value < math.inf:  # also rejects NaN
        raise invalid_request(f"{op.key} must be greater than 0, not {op.value:g}.")
    if op.value > most:
        raise invalid_request(f"{op.key} must be at most {most}, not {op.value:g}.")
    if most == math.inf:
        return repr(op.value)
    if op.value != int(op.value):
        raise invalid_request(f"{op.key} must be a whole number, not {op.value:g}.")
    return str(int(op.value))


class Match(IntEnum):
    EXACT = 0
    DEFAULT = 1
    ANY = 2


async def describe(call: KafkaCall, request: describe_wire.Request) -> describe_wire.Response:
    try:
        check_cluster(call, Operation.DESCRIBE_CONFIGS)
        filters = _filters(request.components)
    except ApiError as error:
        return describe_wire.Response(**error_fields(error), entries=None)
    context, is_operator = call.context, call.caller.is_trusted or call.caller.is_operator
    stored = context.dynamic.stored
    resources = (
        Resource(account, CLIENT_QUOTA, name)
        for account in {context.account, context.config.account}
        for name in tuple(stored.names(account, CLIENT_QUOTA))
    )
    found = []
    async for resource in call.slices.each(resources):
        entity = entity_of(resource.name)
        # Quotas of addresses are stored in the account of the nodes.
        is_own = resource.account == context.account
        is_shown = is_operator if entity[0][0] == IP else is_own
        names, is_fit = dict(entity), not request.strict or len(entity) == len(filters)
        is_match = all(
            kind in names and (one.match_type == Match.ANY or names[kind] == one.match)
            for kind, one in filters.items()
        )
        if is_shown and is_fit and is_match:
            parts = [describe_wire.EntityData(*part) for part in entity]
            quotas = sorted(stored.get(resource).items())
            values = [describe_wire.ValueData(key, float(value)) for key, value in quotas]
            found.append(describe_wire.EntryData(parts, values))
    return describe_wire.Response(error_message="", entries=found)


def _filters(
    components: Sequence[describe_wire.ComponentData],
) -> Mapping[str, describe_wire.ComponentData]:
    filters: dict[str, describe_wire.ComponentData] = {}
    for one in components:
        kind = one.entity_type
        if not kind:
            raise invalid_request("The filter has an empty entity type.")
        if kind in filters:
            raise invalid_request(f"The filter names the entity type {kind[:100]} more than once.")
        if kind not in (USER, CLIENT_ID, IP):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unknown entity type {kind[:100]!r}.")
        if one.match_type not in list(Match):
            raise invalid_request(
                f"Unknown match type {one.match_type}: use 0 (exact), 1 (default) or 2 (any)."
            )
        if (one.match is None) == (one.match_type == Match.EXACT):
            raise invalid_request(
                "Match type 0 (exact) needs a name to match; types 1 and 2 must not have one."
            )
        filters[kind] = one
    if IP in filters and len(filters) > 1:
        raise invalid_request("A filter for ip cannot be combined with user or client-id.")
    return filters
