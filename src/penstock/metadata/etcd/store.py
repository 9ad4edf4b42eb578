"""The metadata store of a cluster, in an etcd of one or several members.

All keys begin with the namespace of this cluster, because other programs may use the same etcd.
Changes by these programs increase the revision too. Reads are linearizable. A call is tried on one
member after another until its timeout, but a transaction that was sent is not retried: if its reply
is lost, OutcomeUnknown is raised. A transaction is sent only to a member that is known to have a
leader, so that few transactions have an unknown outcome.

``links.py`` has the connections, ``watch.py`` watches and keep-alives, ``wire.py`` the encoding."""

import asyncio
import random
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Final

from penstock.metadata.etcd import wire
from penstock.metadata.etcd.links import (
    ENDPOINTS_MAX,
    AnswerTooLarge,
    EtcdConfig,
    Failed,
    HistoryGone,
    Links,
    Method,
)
from penstock.metadata.etcd.watch import Event, KeepAlives, Watches
from penstock.metadata.store import (
    Change,
    ChangeKind,
    Entry,
    LeaseGone,
    Store,
    StoreOutcomeUnknown,
    StoreUnusable,
    Txn,
    check_changes,
    check_ttl,
    find_conflict,
    prefix_range,
)
from penstock.model.errors import InvalidRequest, Throttled
from penstock.telemetry.metrics import Histogram

CALLS_MAX: Final = 10_000  # in progress at once; more would only time out in etcd's queue
# Entries per page. The first page is small enough for the largest values; later ones are sized by
# the page before, so that a catalog of small entries does not take a thousand calls.
PAGE_ENTRIES_MIN: Final = 64
PAGE_ENTRIES_MAX: Final = 4_096
PAGE_BYTES: Final = 4 * 1_048_576
LISTS_MAX: Final = 5  # attempts at a list whose revision keeps being compacted
ATTEMPTS: Final = 2  # attempts at a read within its timeout, each with an equal part of it

_NAMESPACE = re.compile(r"(/[A-Za-z0-9._-]{1,64}){1,4}\Z")
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):\d{1,5}\Z")


class EtcdStore(Store):
    def __init__(self, config: EtcdConfig, *, chance: Callable[[], float]) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._calls = Links(config, purpose="calls", chance=chance)
        self._watches = Watches(config, chance=chance)
        self._keep_alives = KeepAlives(config, chance=chance)
        self._call_count = 0
        self.call_seconds = config.call_ms / 1_000  # timeout of a call
        # Durations of all calls, including failed ones, for metrics.
        self.durations = {method: Histogram() for method in Method}
        self._is_closed = False

    @classmethod
    async def open(
        cls, config: EtcdConfig, *, chance: Callable[[], float] = random.random
    ) -> "EtcdStore":
        """Return a connected store. Raises StoreUnreachable if no member replies in time."""
        _check_config(config)
        store = cls(config, chance=chance)
        try:
            await store._calls.ready(store._loop.time() + config.call_ms / 1_000)
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def trouble(self) -> str | None:
        return self._calls.trouble or self._watches.trouble

    @property
    def staleness_ms(self) -> int:
        return self._watches.staleness_ms

    async def get(self, key: str) -> Entry | None:
        ranged = wire.decode_range(
            await self._call(Method.RANGE, wire.encode_range(self._key(key)))
        )
        return self._entry(ranged.entries[0]) if ranged.entries else None

    async def list(self, prefix: str, *, min_revision: int = 0) -> tuple[Sequence[Entry], int]:
        start, end = self._range(prefix)
        for _ in range(LISTS_MAX):
            try:
                found, revision = await self._list(start, end)
            except HistoryGone:
                continue
            if revision < min_revision:
                raise StoreUnusable(
                    f"etcd is at revision {revision}, but {min_revision} was seen before: etcd was"
                    " restored from an older state"
                )
            return [self._entry(one) for one in found], revision
        raise Throttled("etcd compacts its history faster than the entries can be listed; retry.")

    async def _list(self, start: bytes, end: bytes) -> tuple[Sequence[wire.Stored], int]:
        """Return all entries of a key range, and the revision at which they were read. Raises
        HistoryGone if etcd compacts this revision before all pages are read."""
        found: list[wire.Stored] = []
        revision, limit = 0, PAGE_ENTRIES_MIN
        while True:
            page = await self._page(start, end, limit=limit, revision=revision)
            revision = revision or page.revision
            found += page.entries
            if not page.is_more:
                return found, revision
            start = page.entries[-1].key + b"\x00"
            size = sum(len(one.key) + len(one.value) for one in page.entries)
            fitting = PAGE_BYTES * len(page.entries) // max(1, size)
            limit = max(PAGE_ENTRIES_MIN, min(fitting, PAGE_ENTRIES_MAX, 4 * limit))

    async def _page(self, start: bytes, end: bytes, *, limit: int, revision: int) -> wire.Ranged:
        request = wire.encode_range(start, end, limit=limit, revision=revision)
        try:
            return wire.decode_range(await self._call(Method.RANGE, request))
        except AnswerTooLarge:
            # The next values are larger than expected. The smallest page always fits.
            if limit == PAGE_ENTRIES_MIN:
                raise
            request = wire.encode_range(start, end, limit=PAGE_ENTRIES_MIN, revision=revision)
            return wire.decode_range(await self._call(Method.RANGE, request))

    async def watch(
        self, prefix: str, *, from_revision: int
    ) -> AsyncGenerator[Sequence[Change], None]:
        start, end = self._range(prefix)
        following = self._watches.follow(start, end, from_revision=from_revision)
        async with aclosing(following):
            async for events in following:
                yield [self._change(event) for event in events]

    async def commit(self, txn: Txn) -> int:
        check_changes(txn)
        request = wire.encode_txn(txn, self._key)
        try:
            done = wire.decode_txn(await self._call(Method.TXN, request, is_repeatable=False))
        except LeaseGone:
            raise LeaseGone(txn.lease) from None
        if not done.is_done:
            found = {
                self._name(one.key): (one.version, one.create_revision)
                for some in done.found
                for one in some
            }
            raise find_conflict(txn, lambda key: found.get(key, (0, 0))) or StoreUnusable(
                "etcd rejected a transaction although all comparisons are true."
            )
        return done.revision

    async def grant(self, ttl_ms: int) -> int:
        check_ttl(ttl_ms)
        # Retried if the reply is lost: an unknown lease ends by itself.
        seconds = -(-ttl_ms // 1_000)
        lease = wire.decode_grant(await self._call(Method.GRANT, wire.encode_lease(seconds)))
        if lease == 0:
            raise StoreUnusable("etcd granted a lease without an id.")
        return lease

    async def keep_alive(self, lease: int) -> int:
        return await self._keep_alives.keep_alive(lease)

    async def revoke(self, lease: int) -> None:
        with suppress(LeaseGone):
            await self._call(Method.REVOKE, wire.encode_lease(lease))

    async def close(self) -> None:
        self._is_closed = True
        await self._watches.close()
        await self._keep_alives.close()
        await self._calls.close()

    async def _call(self, method: Method, request: bytes, *, is_repeatable: bool = True) -> bytes:
        """Send a request and return the reply. If the reply is lost, a repeatable request is sent
        to another member, until the timeout; for any other request OutcomeUnknown is raised."""
        if self._is_closed:
            raise StoreUnusable("The metadata store is closed.")
        if self._call_count == CALLS_MAX:
            raise Throttled(f"The limit of {CALLS_MAX} metadata calls at a time is reached; retry.")
        self._call_count += 1
        began = self._loop.time()
        until = began + self.call_seconds
        try:
            while True:
                link = await self._calls.ready(until)
                seconds = max(0.0, until - self._loop.time())
                if is_repeatable:
                    seconds = min(seconds, self._config.call_ms / ATTEMPTS / 1_000)
                try:
                    return await link.ask(method, request, seconds=seconds)
                except Failed as failed:
                    if failed.is_final:
                        raise failed.error from failed
                    self._calls.failed(link, failed.error)
                    if failed.is_unknown and not is_repeatable:
                        raise StoreOutcomeUnknown(str(failed)) from failed
                    if self._loop.time() >= until:
                        raise failed.error from failed
        finally:
            self._call_count -= 1
            self.durations[method].observe(self._loop.time() - began)

    def _key(self, key: str) -> bytes:
        if not key.startswith("/"):
            raise InvalidRequest("A metadata key must begin with a slash.")
        return (self._config.namespace + key).encode()

    def _range(self, prefix: str) -> tuple[bytes, bytes]:
        # Ends with a slash, because the name of another namespace may begin with this one.
        return prefix_range(self._config.namespace + (prefix or "/"))

    def _entry(self, stored: wire.Stored) -> Entry:
        return Entry(self._name(stored.key), stored.value, stored.version, stored.create_revision)

    def _change(self, event: Event) -> Change:
        is_put, stored = event
        kind = ChangeKind.PUT if is_put else ChangeKind.DELETE
        return Change(kind, self._name(stored.key), stored.value, stored.version)

    def _name(self, key: bytes) -> str:
        try:
            return key.decode()[len(self._config.namespace) :]
        except UnicodeDecodeError as error:
            raise StoreUnusable(f"etcd has a key that is not UTF-8: {key!r}") from error


def _check_config(config: EtcdConfig) -> None:
    if not 0 < len(set(config.endpoints)) <= ENDPOINTS_MAX:
        raise StoreUnusable(f"1 to {ENDPOINTS_MAX} etcd endpoints are required.")
    for endpoint in config.endpoints:
        if _ENDPOINT.match(endpoint) is None:
            raise StoreUnusable(f"The etcd endpoint {endpoint} must be HOST:PORT.")
    if _NAMESPACE.match(config.namespace) is None:
        raise StoreUnusable(
            f"The etcd namespace {config.namespace} must consist of 1 to 4 names, such as /a/b."
        )
    if (config.cert_path is None) != (config.key_path is None):
        raise StoreUnusable("An etcd client certificate and its key must be set together.")
    if config.cert_path is not None and config.ca_path is None:
        raise StoreUnusable("An etcd client certificate is set, but the CA file of etcd is not.")
