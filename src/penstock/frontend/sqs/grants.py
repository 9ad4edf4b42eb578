"""A cache of authorized requests.

Most requests repeat an earlier one: same caller, action and queue URL. For these, one lookup gives
the queue, the tenant, its limits and the counters of its usage. A grant is kept only if the request
was allowed and the decision did not depend on the address, the transport or the time.

Any change of identities clears the cache. A grant is valid only for the topic object it was made
for: a changed queue is another object. Callers look the queue up in the catalog each time; the
catalog does not report every change, because a full catalog may drop a queue silently."""

from typing import Final

from penstock.frontend.facts.usage import Counts
from penstock.frontend.limits.throttler import RequestLimits
from penstock.model.identity import Tenant
from penstock.model.ports import Identities
from penstock.model.topic import Topic

GRANTS_MAX: Final = 20_000  # about 500 bytes each; the cache is cleared when it is full

Key = tuple[str, str, str, str, str]  # account, user, permission, URL as given, region


class Grant:
    __slots__ = ("arn", "counts", "counts_minute_ms", "limits", "tenant", "topic")

    def __init__(self, topic: Topic, tenant: Tenant | None) -> None:
        self.topic = topic
        self.arn = topic.arn
        self.tenant = tenant  # the caller's
        self.limits: RequestLimits | None = None  # set by throttling
        self.counts: Counts | None = None  # set by metering, for one minute
        self.counts_minute_ms = 0


class Grants:
    def __init__(self, identities: Identities) -> None:
        self._identities = identities
        self._epoch = identities.epoch
        self._grants: dict[Key, Grant] = {}

    def find(self, key: Key) -> Grant | None:
        epoch = self._identities.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._grants.clear()
        return self._grants.get(key)

    def add(self, key: Key, topic: Topic) -> Grant:
        """Add a grant, without an await since ``find``."""
        assert self._epoch == self._identities.epoch, "find() was called first"
        if len(self._grants) >= GRANTS_MAX:
            self._grants.clear()
        grant = self._grants[key] = Grant(topic, self._identities.tenant(key[0]))
        return grant
