"""Limits on the connections per second that Kafka clients open to this node, from one address and
from all together.

The rate of an address is a client quota (``connection_creation_rate`` of an ip), the rate of all is
the broker config ``max.connection.creation.rate``. A connection above a rate is closed at once."""

import ipaddress
from typing import Final

from penstock.frontend.kafka.access.client_quotas import BUCKETS_MAX, IP, entity_of
from penstock.frontend.limits.throttler import LeakyBucket
from penstock.metadata.topics.resource_configs import (
    CLIENT_QUOTA,
    Configs,
    Resource,
    ResourceConfigs,
)
from penstock.model.identity import Rate
from penstock.net.listener import source_of

CREATION_RATE: Final = "connection_creation_rate"
_DEFAULT: Final = ""  # all addresses without a rate of their own


class ConnectionRates:
    def __init__(self, stored: ResourceConfigs, *, account: str) -> None:
        """``account``: of the nodes, where quotas of addresses are stored."""
        self._account = account
        self._rates: dict[str, float] = {}  # by address
        self._buckets: dict[str, LeakyBucket] = {}  # by address; by network for the default
        self._all: LeakyBucket | None = None
        stored.on_change(CLIENT_QUOTA, self._changed)
        for name in stored.names(account, CLIENT_QUOTA):
            self._changed(account, name, stored.get(Resource(account, CLIENT_QUOTA, name)))

    def limit(self, per_s: int | None) -> None:
        """Set the rate of all addresses together; None: no limit."""
        if per_s is None:
            self._all = None
        elif self._all is None or self._all.rate.per_s != per_s:
            self._all = LeakyBucket(Rate(per_s, per_s))

    def admits(self, address: str, *, now_ms: float) -> bool:
        """Count a new connection. False: it is above a rate."""
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
                self._buckets = {
                    key: one for key, one in self._buckets.items() if not one.is_idle(now_ms=now_ms)
                }
            if len(self._buckets) >= BUCKETS_MAX:
                self._buckets.clear()  # all in use: each address gets one burst more
            bucket = self._buckets[place] = LeakyBucket(Rate(per_s, per_s))
        return bucket


def _plain(address: str) -> str:
    """The one text of an address that has several. Clients of an IPv6 socket may be IPv4."""
    found = ipaddress.ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
