"""All subscriptions, in the metadata store and in the memory of every node.

    /subscriptions/{place}    the subscription as JSON

The place is the part of the id that follows from topic, protocol and endpoint
(``model/subscription.py``). If two nodes subscribe the same endpoint at the same moment, the store
rejects one of the entries, and both requests get the same subscription.

A subscription belongs to a topic, but a transaction cannot check both, so a subscription may be
created while another node deletes its topic. ``sweep`` deletes it then."""

import asyncio
import logging
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from penstock.metadata.cache import TRIES_MAX, Cache, WatchGroup, put_in, write_all
from penstock.metadata.security.identities import Resealed, reseal
from penstock.metadata.store import CHANGES_PER_TXN_MAX, Store
from penstock.model import limits
from penstock.model.errors import (
    InvalidRequest,
    NotFound,
    Overloaded,
    PenstockError,
    QuotaExceeded,
    Throttled,
    VersionConflict,
)
from penstock.model.levels import LEVEL_MAX, PUSH
from penstock.model.ports import Identities
from penstock.model.quotas import SUBSCRIPTIONS, SharedLimit, most_of
from penstock.model.subscription import (
    Subscription,
    SubscriptionState,
    check_subscription,
    is_id,
    place_of_endpoint,
    place_of_id,
)
from penstock.wire.internal.faults import OutcomeUnknown

SUBSCRIPTIONS_PREFIX: Final = "/subscriptions/"
SWEPT_AT_ONCE: Final = 2_000  # subscriptions checked before other tasks run

Listener = Callable[[Subscription | None, Subscription | None], None]
Decide = Callable[[Subscription | None], Subscription | None]
K = TypeVar("K")

log = logging.getLogger(__name__)

_decode = msgspec.json.Decoder(Subscription).decode


def subscription_key(subscription_id: str) -> str:
    return f"{SUBSCRIPTIONS_PREFIX}{place_of_id(subscription_id)}"


def encode_subscription(one: Subscription) -> bytes:
    """Return the stored form of a subscription. Raises InvalidRequest if it exceeds a limit."""
    check_subscription(one)
    return msgspec.json.encode(one)


def decode_subscription(value: bytes) -> Subscription:
    """Return a subscription that another node or a backup has sent, after all checks."""
    one = _decode(value)
    check_subscription(one)
    return one


def paused_entry(value: bytes, reason: str) -> bytes | None:
    """Return a stored subscription that is paused, or None if it calls no endpoint anyway."""
    one = decode_subscription(value)
    if one.paused is not None or not one.calls_out:
        return None
    return encode_subscription(msgspec.structs.replace(one, paused=reason))


def _live(one: Subscription | None) -> Subscription | None:
    return None if one is None or one.state is SubscriptionState.DELETED else one


class StoredSubscriptions(WatchGroup):
    """Implements ``model.ports.Subscriptions`` over any store."""

    def __init__(
        self,
        store: Store,
        identities: Identities,
        *,
        own_account: str,
        level: Callable[[], int] = lambda: LEVEL_MAX,  # the feature level in force
    ) -> None:
        self._store = store
        self._identities = identities
        self._own_account = own_account
        self._level = level
        self._rows = Cache(
            store,
            SUBSCRIPTIONS_PREFIX,
            decode=_decode,
            encode=encode_subscription,
            on_change=self._on_row_change,
        )
        super().__init__(self._rows)
        # Views, without deleted subscriptions:
        self._by_topic: dict[str, dict[str, Subscription]] = {}  # by topic id and id
        self._ids: dict[tuple[str, ...], list[str]] = {}  # sorted, by topic id and by namespace
        # Numbers, with deleted subscriptions:
        self._states: Counter[tuple[str, SubscriptionState]] = Counter()  # by topic id
        self._accounts: Counter[str] = Counter()
        self._bytes = SharedLimit(
            limits.SUBSCRIPTIONS_BYTES_MAX,
            limits.TENANT_SUBSCRIPTIONS_PERCENT,
            own_account=own_account,
        )
        self._listeners: list[Listener] = []

    # ── Reading ──────────────────────────────────────────────────────────────────────────────

    def find(self, subscription_id: str) -> Subscription | None:
        one = self._rows.get(subscription_key(subscription_id))
        return _live(one) if one is not None and one.id == subscription_id else None

    def find_endpoint(self, topic_id: str, protocol: str, endpoint: str) -> Subscription | None:
        place = place_of_endpoint(topic_id, protocol, endpoint)
        one = _live(self._rows.get(f"{SUBSCRIPTIONS_PREFIX}{place}"))
        return one if one is not None and _is_same(one, topic_id, protocol, endpoint) else None

    async def learn(self, subscription_id: str) -> Subscription | None:
        found = self.find(subscription_id)
        if found is None and is_id(subscription_id):
            await self._rows.refresh(subscription_key(subscription_id))
            found = self.find(subscription_id)
        return found

    def of_topic(self, topic_id: str) -> Collection[Subscription]:
        return self._by_topic.get(topic_id, {}).values()

    def page(
        self, account: str, region: str, *, after: str = "", count: int
    ) -> Sequence[Subscription]:
        return self._page((account, region), after, count)

    def page_of_topic(
        self, topic_id: str, *, after: str = "", count: int
    ) -> Sequence[Subscription]:
        return self._page((topic_id,), after, count)

    def _page(self, group: tuple[str, ...], after: str, count: int) -> Sequence[Subscription]:
        ids = self._ids.get(group, [])
        start = bisect_right(ids, after)
        found = (self.find(one) for one in ids[start : start + count])
        return [one for one in found if one is not None]

    def count(self, topic_id: str, state: SubscriptionState) -> int:
        return self._states[topic_id, state]

    def used(self, account: str) -> int:
        """Return the number of subscriptions that count towards the quota of a tenant."""
        return self._accounts[account]

    def __len__(self) -> int:
        return len(self._rows)

    def on_change(self, listener: Listener) -> None:
        self._listeners.append(listener)

    # ── Changes ──────────────────────────────────────────────────────────────────────────────

    async def create(self, new: Subscription) -> Subscription:
        if self._level() < PUSH:
            raise Overloaded(
                f"Subscriptions need feature level {PUSH}: upgrade all nodes, then run penstock"
                " cluster upgrade."
            )
        assert new.state is not SubscriptionState.DELETED

        def decide(found: Subscription | None) -> Subscription:
            live = _live(found)
            if live is None or _is_over(live, now_ms=new.created_at_ms):
                return new
            if not _is_same(live, new.topic_id, new.protocol, new.endpoint):
                # Two endpoints with the same hash: 60 bits, so this does not happen by accident.
                raise InvalidRequest("This endpoint cannot be subscribed to this topic.")
            return live

        created = await self._write(subscription_key(new.id), decide)
        assert created is not None
        return created

    async def change(
        self, subscription_id: str, change: Callable[[Subscription], Subscription]
    ) -> Subscription:
        def decide(before: Subscription | None) -> Subscription:
            if before is None or before.id != subscription_id:
                raise NotFound("Subscription does not exist")
            after = change(before)
            assert after.id == before.id
            return after

        if not is_id(subscription_id):
            raise NotFound("Subscription does not exist")
        changed = await self._write(subscription_key(subscription_id), decide)
        assert changed is not None
        return changed

    async def delete(self, subscription_id: str) -> None:
        def decide(before: Subscription | None) -> Subscription | None:
            is_other = before is None or before.id != subscription_id
            return before if is_other else None

        if is_id(subscription_id):
            await self._write(subscription_key(subscription_id), decide)

    async def delete_of_topic(self, topic_id: str) -> int:
        return await self._delete_due(self.of_topic(topic_id), lambda _one: True)

    async def delete_all(self) -> int:
        return await self._delete_due(self._rows.values(), lambda _one: True)

    async def sweep(self, *, now_ms: int, is_deleted: Callable[[str], bool]) -> int:
        """Delete subscriptions that were not confirmed or not restored in time, and those of
        deleted topics. ``is_deleted`` gets a topic id. It must return False for a topic that is
        only missing in memory. Returns the number of subscriptions deleted."""

        def is_due(one: Subscription) -> bool:
            return _is_over(one, now_ms=now_ms) or is_deleted(one.topic_id)

        return await self._delete_due(self._rows.values(), is_due)

    async def reseal(self, rewrap: Callable[[bytes, bytes], bytes]) -> Resealed:
        """Encrypt every secret with the current master key."""

        def change(_key: str, one: Subscription) -> Subscription:
            sealed = one.secrets and rewrap(one.secrets, one.secrets_context)
            return msgspec.structs.replace(one, secrets=sealed)

        keys = [subscription_key(one.id) for one in self._rows.values() if one.secrets]
        return await reseal(self._rows, keys, change)

    async def _write(self, key: str, decide: Decide) -> Subscription | None:
        """Replace an entry by ``decide(entry)``, and return the result. None means that there is no
        entry. ``decide`` is called again after a conflict. It is also called again, with the entry
        in the store, if it changed nothing or failed: memory may be out of date."""
        before, version, is_fresh = self._rows.get(key), self._rows.version(key), False
        for _ in range(TRIES_MAX):
            uncertain: Subscription | None = None
            try:
                after = decide(before)
                if after == before and is_fresh:
                    return after
            except PenstockError:
                if is_fresh:
                    raise
                after = before
            if after != before:
                self._check_room(before, after)
                try:
                    await self._rows.write(key, after, if_version=version)
                    return after
                except VersionConflict:
                    pass
                except OutcomeUnknown:
                    uncertain = after
            before, version = await self._rows.refresh(key)
            is_fresh = True
            if uncertain is not None and before == uncertain:
                return before
        raise Throttled("The subscription is being changed by another request; retry.")

    async def _delete_due(
        self, some: Iterable[Subscription], is_due: Callable[[Subscription], bool]
    ) -> int:
        keys: list[str] = []
        for number, one in enumerate(tuple(some), 1):
            if is_due(one):
                keys.append(subscription_key(one.id))
            if number % SWEPT_AT_ONCE == 0:
                await asyncio.sleep(0)
        for start in range(0, len(keys), CHANGES_PER_TXN_MAX):
            await self._delete_some(keys[start : start + CHANGES_PER_TXN_MAX], is_due)
        return len(keys)

    async def _delete_some(
        self, keys: Iterable[str], is_due: Callable[[Subscription], bool]
    ) -> None:
        known = ((key, self._rows.get(key)) for key in keys)
        due = [key for key, one in known if one is not None and is_due(one)]
        compare = [(key, self._rows.version(key)) for key in due]
        if not due:
            return
        try:
            await write_all(self._store, compare, [(self._rows, key, None) for key in due])
        except (VersionConflict, OutcomeUnknown):

            def rest(one: Subscription | None) -> Subscription | None:
                return None if one is None or is_due(one) else one

            for key in due:  # at least one of them was changed by another node
                await self._rows.update(key, rest, what="The subscription")

    def _check_room(self, before: Subscription | None, after: Subscription | None) -> None:
        # Counts subscriptions in memory: nodes that add some at the same time may exceed a limit.
        if after is None:
            return
        account, topic_id = after.account, after.topic_id
        added = after.size_bytes - (0 if before is None else before.size_bytes)
        if added > 0 and (self._bytes.is_full(added) or self._bytes.is_used_up(account, added)):
            raise QuotaExceeded(
                f"The subscriptions of this tenant have {self._bytes.of(account):,} bytes, those"
                f" of all tenants {self._bytes.total:,}; {added:,} more do not fit. Delete some,"
                " or use shorter filter policies."
            )
        if before is None:
            tenant, bound = self._identities.tenant(account), limits.SUBSCRIPTIONS_MAX
            most = most_of(tenant, SUBSCRIPTIONS, own_account=self._own_account, bound=bound)
            if self.used(account) >= most:
                raise QuotaExceeded(SUBSCRIPTIONS.exceeded(self.used(account), most))
            if len(self) >= bound:
                raise QuotaExceeded(
                    f"All tenants together have {len(self):,} of {bound:,} subscriptions. Delete"
                    " some."
                )
        most = limits.SUBSCRIPTIONS_PER_TOPIC_MAX
        if _live(before) is None and len(self.of_topic(topic_id)) >= most:
            raise QuotaExceeded(f"The topic has {most:,} of {most:,} subscriptions. Delete some.")

    # ── Memory ───────────────────────────────────────────────────────────────────────────────

    def _on_row_change(
        self, key: str, before: Subscription | None, after: Subscription | None
    ) -> None:
        if before is not None and after is not None and before.id != after.id:
            # Deleted and created again between two updates: report both to listeners.
            self._on_row_change(key, before, None)
            before = None
        if before is not None:
            self._count(before, -1)
        if after is not None:
            self._count(after, 1)
        was, now = _live(before), _live(after)
        if was is not None:
            self._forget(was)
        if now is not None:
            self._remember(now)
        if was is None and now is None:
            return
        for listener in self._listeners:
            try:
                listener(was, now)
            except Exception:
                # The change is durable and in force: a failing listener must not stop the others.
                log.exception("subscription listener failed")

    def _count(self, one: Subscription, change: int) -> None:
        _add(self._states, (one.topic_id, one.state), change)
        _add(self._accounts, one.account, change)
        self._bytes.add(one.account, change * one.size_bytes)

    def _remember(self, one: Subscription) -> None:
        put_in(self._by_topic, one.topic_id, one.id, one)
        for group in _groups(one):
            insort(self._ids.setdefault(group, []), one.id)

    def _forget(self, one: Subscription) -> None:
        put_in(self._by_topic, one.topic_id, one.id, None)
        for group in _groups(one):
            ids = self._ids[group]
            del ids[bisect_left(ids, one.id)]
            if not ids:
                del self._ids[group]


def _groups(one: Subscription) -> Sequence[tuple[str, ...]]:
    return (one.topic_id,), (one.account, one.region)


def _is_over(one: Subscription, *, now_ms: int) -> bool:
    """Return whether the time to confirm or restore a subscription is over."""
    is_pending = one.state is SubscriptionState.PENDING
    # A webhook is a setting of its owner, so it stays when its endpoint refuses permission.
    if one.state is SubscriptionState.CONFIRMED or (is_pending and one.webhook):
        return False
    since_ms = one.created_at_ms if is_pending else one.deleted_at_ms
    return now_ms - since_ms >= limits.CONFIRMATION_MS


def _is_same(one: Subscription, topic_id: str, protocol: str, endpoint: str) -> bool:
    return (one.topic_id, one.protocol, one.endpoint) == (topic_id, protocol, endpoint)


def _add(counts: Counter[K], key: K, change: int) -> None:
    counts[key] += change
    if not counts[key]:
        del counts[key]
