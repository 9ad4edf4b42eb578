"""SNS address books of all tenants, in the metadata store and in the memory of every node.

    /snsbooks/{account}/{region}/application/{platform}/{name}    a mobile app
    /snsbooks/{account}/{region}/endpoint/{hash}                  a device of a mobile app
    /snsbooks/{account}/{region}/sms                              settings for text messages

The hash is that of the application and the token (``model/address_book.py``). If two nodes create a
device with the same token at the same moment, the store rejects one of the entries, and both
requests get the same device. A device whose token is replaced moves to another key, in one
transaction.

The credentials of an application are wrapped by the key ring, with its key as context."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from penstock.metadata.cache import TRIES_MAX, Cache, WatchGroup, write_all
from penstock.metadata.security.identities import Resealed, reseal
from penstock.metadata.store import CHANGES_PER_TXN_MAX, Store
from penstock.model import limits
from penstock.model.address_book import (
    BookEntry,
    Namespace,
    PlatformApplication,
    PlatformEndpoint,
    SmsBook,
    check_entry,
    size_of,
)
from penstock.model.errors import (
    Conflict,
    NotFound,
    Overloaded,
    QuotaExceeded,
    Throttled,
    VersionConflict,
)
from penstock.model.levels import LEVEL_MAX, PUSH
from penstock.model.ports import KeyRing
from penstock.model.quotas import SharedLimit
from penstock.wire.internal.faults import OutcomeUnknown

BOOKS_PREFIX: Final = "/snsbooks/"

ApplicationKey = tuple[str, str, str, str]  # account, region, platform and name
E = TypeVar("E", PlatformApplication, PlatformEndpoint, SmsBook)
G = TypeVar("G")
T = TypeVar("T", str, tuple[str, str])

_decode: Callable[[bytes], BookEntry] = msgspec.json.Decoder(BookEntry).decode


def book_key(entry: BookEntry) -> str:
    return f"{BOOKS_PREFIX}{entry.place}"


def encode_book_entry(entry: BookEntry) -> bytes:
    """Return the stored form of an entry. Raises InvalidRequest if it exceeds a limit."""
    check_entry(entry)
    return msgspec.json.encode(entry)


def decode_book_entry(value: bytes) -> BookEntry:
    """Return an entry that another node or a backup has sent, after all checks."""
    entry = _decode(value)
    check_entry(entry)
    return entry


def _application_key(key: ApplicationKey) -> str:
    account, region, platform, name = key
    return f"{BOOKS_PREFIX}{account}/{region}/application/{platform}/{name}"


class StoredAddressBooks(WatchGroup):
    """Implements ``model.ports.AddressBooks`` over any store."""

    def __init__(
        self,
        store: Store,
        ring: KeyRing,
        *,
        own_account: str,
        level: Callable[[], int] = lambda: LEVEL_MAX,  # the feature level in force
    ) -> None:
        self._store = store
        self._ring = ring
        self._level = level
        self._rows = Cache(
            store,
            BOOKS_PREFIX,
            decode=_decode,
            encode=encode_book_entry,
            on_change=self._on_row_change,
        )
        super().__init__(self._rows)
        self._names: dict[Namespace, list[tuple[str, str]]] = {}  # sorted platforms and names
        self._keys: dict[tuple[str, str, str], str] = {}  # by account, region and endpoint id
        self._ids: dict[ApplicationKey, list[str]] = {}  # sorted ids of endpoints
        self._bytes = SharedLimit(
            limits.BOOKS_BYTES_MAX, limits.TENANT_BOOKS_PERCENT, own_account=own_account
        )

    def __len__(self) -> int:
        return len(self._rows)

    # ── Applications ─────────────────────────────────────────────────────────────────────────

    def application(self, key: ApplicationKey) -> PlatformApplication | None:
        found = self._rows.get(_application_key(key))
        return found if isinstance(found, PlatformApplication) else None

    def applications(
        self, account: str, region: str, *, after: tuple[str, str], count: int
    ) -> Sequence[PlatformApplication]:
        names = self._names.get((account, region), [])
        start = bisect_right(names, after)
        found = (self.application((account, region, *one)) for one in names[start : start + count])
        return [one for one in found if one is not None]

    def secrets(self, application: PlatformApplication) -> dict[str, str]:
        if not application.secrets:
            return {}
        context = book_key(application).encode()
        opened = self._ring.unwrap(application.secrets, context=context)
        return msgspec.json.decode(opened, type=dict[str, str])

    def with_secrets(
        self, application: PlatformApplication, secrets: dict[str, str]
    ) -> PlatformApplication:
        wrapped = b""
        if secrets:
            context = book_key(application).encode()
            wrapped = self._ring.wrap(msgspec.json.encode(secrets), context=context)
        return msgspec.structs.replace(application, secrets=wrapped)

    async def create_application(self, new: PlatformApplication) -> PlatformApplication:
        return await self._change(book_key(new), lambda before: before or new)

    async def change_application(
        self, key: ApplicationKey, change: Callable[[PlatformApplication], PlatformApplication]
    ) -> None:
        def decide(before: PlatformApplication | None) -> PlatformApplication:
            if before is None:
                raise NotFound("PlatformApplication does not exist")
            return change(before)

        at = _application_key(key)
        if self._rows.get(at) is None:  # perhaps created by another node just now
            await self._rows.refresh(at)
        await self._change(at, decide)

    async def delete_application(self, key: ApplicationKey) -> None:
        """Delete an application after its endpoints, so that the request can be repeated."""
        ids = list(self._ids.get(key, ()))
        for start in range(0, len(ids), CHANGES_PER_TXN_MAX):
            some = ids[start : start + CHANGES_PER_TXN_MAX]
            await self._delete([self._keys.get((*key[:2], one), "") for one in some])
        await self._delete([_application_key(key)])

    # ── Endpoints ────────────────────────────────────────────────────────────────────────────

    def endpoint(self, account: str, region: str, endpoint_id: str) -> PlatformEndpoint | None:
        found = self._rows.get(self._keys.get((account, region, endpoint_id), ""))
        return found if isinstance(found, PlatformEndpoint) else None

    def endpoints(
        self, key: ApplicationKey, *, after: str, count: int
    ) -> Sequence[PlatformEndpoint]:
        ids = self._ids.get(key, [])
        start = bisect_right(ids, after)
        found = (self.endpoint(*key[:2], one) for one in ids[start : start + count])
        return [one for one in found if one is not None]

    async def create_endpoint(self, new: PlatformEndpoint) -> PlatformEndpoint:
        return await self._change(book_key(new), lambda before: before or new)

    async def change_endpoint(
        self,
        account: str,
        region: str,
        endpoint_id: str,
        change: Callable[[PlatformEndpoint], PlatformEndpoint],
    ) -> None:
        for _ in range(TRIES_MAX):
            before = self.endpoint(account, region, endpoint_id)
            if before is None:
                raise NotFound("Endpoint does not exist")
            after = change(before)
            assert after.id == before.id
            if after == before:
                return
            self._check_room(before, after)
            old, new = book_key(before), book_key(after)
            writes: list[tuple[Cache[BookEntry], str, BookEntry | None]] = [
                (self._rows, new, after)
            ]
            compare = [(old, self._rows.version(old))]
            if new != old:
                if self._rows.get(new) is not None:
                    raise Conflict("Another endpoint has this token.")
                writes.append((self._rows, old, None))
                compare.append((new, 0))
            try:
                await write_all(self._store, compare, writes)
                return
            except (VersionConflict, OutcomeUnknown):
                await self._rows.refresh(new)
                current, _ = await self._rows.refresh(old)
                if current is None and self._keys.get((account, region, endpoint_id)) == old:
                    break  # deleted or moved, which memory does not know yet
        raise Throttled("The endpoint is being changed by another request; retry.")

    async def delete_endpoint(self, account: str, region: str, endpoint_id: str) -> None:
        key = self._keys.get((account, region, endpoint_id))
        if key is not None:
            await self._delete([key])

    # ── Text messages ────────────────────────────────────────────────────────────────────────

    def sms(self, account: str, region: str) -> SmsBook:
        empty = SmsBook(account, region)
        found = self._rows.get(book_key(empty))
        return found if isinstance(found, SmsBook) else empty

    async def change_sms(
        self, account: str, region: str, change: Callable[[SmsBook], SmsBook]
    ) -> None:
        empty = SmsBook(account, region)
        at = book_key(empty)
        await self._rows.refresh(at)  # a password may have been sent by another node just now
        await self._change(at, lambda before: change(before or empty))

    # ── Changes ──────────────────────────────────────────────────────────────────────────────

    async def delete_all(self) -> None:
        entries = self._rows.values()
        others = [book_key(one) for one in entries if not isinstance(one, PlatformEndpoint)]
        await self._delete([*self._keys.values(), *others])

    async def reseal(self, rewrap: Callable[[bytes, bytes], bytes]) -> Resealed:
        """Encrypt every secret with the current master key."""

        def change(at: str, entry: BookEntry) -> BookEntry:
            assert isinstance(entry, PlatformApplication)
            return msgspec.structs.replace(entry, secrets=rewrap(entry.secrets, at.encode()))

        sealed = [
            book_key(one)
            for one in self._rows.values()
            if isinstance(one, PlatformApplication) and one.secrets
        ]
        return await reseal(self._rows, sealed, change)

    async def _change(self, key: str, decide: Callable[[E | None], E]) -> E:
        """Replace an entry by ``decide(entry)``, which is called again after a conflict."""
        decided: E | None = None

        def change(before: Any) -> E:
            nonlocal decided
            decided = decide(before)
            self._check_room(before, decided)
            return decided

        await self._rows.update(key, change, what="The address book")
        assert decided is not None
        return decided

    async def _delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), CHANGES_PER_TXN_MAX):
            known = keys[start : start + CHANGES_PER_TXN_MAX]
            some = [key for key in known if self._rows.get(key) is not None]
            compare = [(key, self._rows.version(key)) for key in some]
            if not some:
                continue
            try:
                await write_all(self._store, compare, [(self._rows, key, None) for key in some])
            except (VersionConflict, OutcomeUnknown):
                for key in some:  # at least one of them was changed by another node
                    await self._rows.update(key, lambda _entry: None, what="The address book")

    def _check_room(self, before: BookEntry | None, after: BookEntry) -> None:
        # Counts entries in memory: nodes that add some at the same time may exceed a limit.
        if self._level() < PUSH:
            raise Overloaded(
                f"Address books need feature level {PUSH}: upgrade all nodes, then run penstock"
                " cluster upgrade."
            )
        account, room = after.account, self._bytes
        added = size_of(after) - (0 if before is None else size_of(before))
        if added > 0 and (room.is_full(added) or room.is_used_up(account, added)):
            raise QuotaExceeded(
                f"The address books of this tenant have {room.of(account):,} bytes, those of all"
                f" tenants {room.total:,}; {added:,} more do not fit. Delete devices or apps."
            )

    # ── Memory ───────────────────────────────────────────────────────────────────────────────

    def _on_row_change(self, key: str, before: BookEntry | None, after: BookEntry | None) -> None:
        for entry, change in ((before, -1), (after, 1)):
            if entry is not None:
                self._bytes.add(entry.account, change * size_of(entry))
        if before is not None:
            self._forget(key, before)
        if after is not None:
            self._remember(key, after)

    def _remember(self, key: str, entry: BookEntry) -> None:
        if isinstance(entry, PlatformApplication):
            names = self._names.setdefault((entry.account, entry.region), [])
            insort(names, (entry.platform, entry.name))
        elif isinstance(entry, PlatformEndpoint):
            by_id = (entry.account, entry.region, entry.id)
            # A device with a new token may appear under its new key before the old one is deleted.
            if by_id not in self._keys:
                insort(self._ids.setdefault(_application_of(entry), []), entry.id)
            self._keys[by_id] = key

    def _forget(self, key: str, entry: BookEntry) -> None:
        if isinstance(entry, PlatformApplication):
            _remove(self._names, (entry.account, entry.region), (entry.platform, entry.name))
        elif isinstance(entry, PlatformEndpoint):
            by_id = (entry.account, entry.region, entry.id)
            if self._keys.get(by_id) == key:
                del self._keys[by_id]
                _remove(self._ids, _application_of(entry), entry.id)


def _application_of(entry: PlatformEndpoint) -> ApplicationKey:
    return entry.account, entry.region, entry.platform, entry.application


def _remove(groups: dict[G, list[T]], group: G, value: T) -> None:
    values = groups[group]
    del values[bisect_left(values, value)]
    if not values:
        del groups[group]
