"""Client quotas: limits on the bytes per second that a user or client id sends to or fetches from
this node.

A quota belongs to an entity: a user, a client id, or a user with a client id. Each is given by
name, or as the default for all names without a quota. An address (ip) is an entity of its own.
Quotas are stored per tenant (``metadata/topics/resource_configs.py``). The stored name of an entity
is a text such as ``client-id=app&user=ann``; a part without ``=`` is the default.

Bytes are counted in leaky buckets after each request. The reply tells a client above its quota how
long to pause, and the node does not read the connection until then. Each node counts for itself,
as in Kafka."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from penstock.frontend.limits.throttler import LeakyBucket
from penstock.metadata.topics.resource_configs import (
    CLIENT_QUOTA,
    Configs,
    Resource,
    ResourceConfigs,
)
from penstock.model.identity import Rate

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
PRODUCED: Final = "producer_byte_rate"
FETCHED: Final = "consumer_byte_rate"
FETCH_SECONDS_MAX: Final = 10  # one fetch gets what the quota allows in this time, as in Kafka
FOUND_MAX: Final = 20_000  # clients whose buckets are remembered; about 300 bytes each
BUCKETS_MAX: Final = 20_000  # above it, empty buckets are dropped: a new one is the same

Entity = tuple[tuple[str, str | None], ...]  # types with names, sorted by type; None: the default


def entity_text(entity: Entity) -> str:
    return "&".join(
        kind if name is None else f"{kind}={quote(name, safe='')}" for kind, name in entity
    )


def entity_of(text: str) -> Entity:
    parts = (part.partition("=") for part in text.split("&"))
    return tuple((kind, unquote(name) if mark else None) for kind, mark, name in parts)


def entities_of(user: str, client_id: str) -> Iterator[Entity]:
    """Yield all entities that a client belongs to. The first with a quota applies."""
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
    key: str  # of the quota


class ClientQuotas:
    def __init__(self, stored: ResourceConfigs) -> None:
        self._stored = stored
        self._found: dict[_Client, LeakyBucket | None] = {}
        self._buckets: dict[_Client, LeakyBucket] = {}
        self.is_any = False  # whether any tenant has quotas; if not, callers skip everything else
        stored.on_change(CLIENT_QUOTA, self._changed)
        self._look()

    def _changed(self, _account: str, _name: str, _configs: Configs) -> None:
        self._look()

    def _look(self) -> None:
        self._found.clear()
        self.is_any = bool(self._stored.accounts(CLIENT_QUOTA))

    def charge(
        self, account: str, user: str, client_id: str, key: str, size_bytes: int, *, now_ms: float
    ) -> int:
        """Count bytes that were sent or fetched. Return the pause of the client in milliseconds."""
        bucket = self._bucket(_Client(account, user, client_id, key), now_ms)
        if bucket is None:
            return 0
        bucket.add(size_bytes, now_ms=now_ms)
        return bucket.wait_ms(0, now_ms=now_ms)

    def fetch_bytes_max(
        self, account: str, user: str, client_id: str, *, now_ms: float
    ) -> int | None:
        """Return the largest reply to one fetch, so that pauses stay short; None: no quota."""
        bucket = self._bucket(_Client(account, user, client_id, FETCHED), now_ms)
        return None if bucket is None else int(bucket.rate.per_s * FETCH_SECONDS_MAX)

    def _bucket(self, client: _Client, now_ms: float) -> LeakyBucket | None:
        try:
            return self._found[client]
        except KeyError:
            pass
        if len(self._found) >= FOUND_MAX:
            self._found.clear()
        bucket = self._found[client] = self._work_out(client, now_ms)
        return bucket

    def _work_out(self, client: _Client, now_ms: float) -> LeakyBucket | None:
        for entity in entities_of(client.user, client.client_id):
            resource = Resource(client.account, CLIENT_QUOTA, entity_text(entity))
            text = self._stored.get(resource).get(client.key)
            if text is not None:
                return self._shared(client, dict(entity), float(text), now_ms)
        return None

    def _shared(
        self, client: _Client, entity: Mapping[str, str | None], per_s: float, now_ms: float
    ) -> LeakyBucket:
        """Return the bucket of all clients that share the quota with this client. A default gives
        each user or client id a bucket of its own."""
        place = client._replace(
            user=client.user if USER in entity else "",
            client_id=client.client_id if CLIENT_ID in entity else "",
        )
        bucket = self._buckets.get(place)
        if bucket is None or bucket.rate.per_s != per_s:
            if len(self._buckets) >= BUCKETS_MAX:
                self._drop_idle(now_ms)
            bucket = self._buckets[place] = LeakyBucket(Rate(per_s, per_s))
        return bucket

    def _drop_idle(self, now_ms: float) -> None:
        self._found.clear()  # it may refer to buckets that are dropped
        self._buckets = {k: b for k, b in self._buckets.items() if not b.is_idle(now_ms=now_ms)}
        if len(self._buckets) >= BUCKETS_MAX:
            self._buckets.clear()  # all in use: each client gets one burst more


def sorted_entity(parts: Sequence[tuple[str, str | None]]) -> Entity:
    return tuple(sorted(parts, key=lambda part: part[0]))
