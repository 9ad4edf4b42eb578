"""Address books over every store, a real key ring, and two nodes at once."""

import asyncio
import os
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.metadata.conftest import ACCOUNT, MASTER, OTHER
from tests.unit.metadata.test_subscriptions import shared, until  # noqa: F401

from penstock.metadata.address_books import (
    BOOKS_PREFIX,
    StoredAddressBooks,
    book_key,
    decode_book_entry,
    encode_book_entry,
)
from penstock.metadata.serving.entry_rules import check_txn
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store, Txn
from penstock.model import limits
from penstock.model.address_book import (
    PlatformApplication,
    PlatformEndpoint,
    SandboxNumber,
    SmsBook,
    size_of,
)
from penstock.model.errors import (
    Conflict,
    Damaged,
    InvalidRequest,
    NotFound,
    Overloaded,
    QuotaExceeded,
)
from penstock.model.levels import PUSH
from penstock.model.names import uuid_text
from penstock.model.ports import AddressBooks
from penstock.node.keys.keyring import MasterKeyRing

REGION = "us-east-1"
SHOP = (ACCOUNT, REGION, "GCM", "shop")
SECRETS = {"PlatformPrincipal": "who", "PlatformCredential": "hunter2"}


def make(
    store: Store, *, level: int = PUSH, ring: MasterKeyRing | None = None
) -> StoredAddressBooks:
    books = StoredAddressBooks(
        store, ring or MasterKeyRing(MASTER), own_account="000000000000", level=lambda: level
    )
    _port: AddressBooks = books  # for the type checker
    return books


def application(
    name: str = "shop", account: str = ACCOUNT, **attributes: str
) -> PlatformApplication:
    return PlatformApplication(account, REGION, "GCM", name, 1_000, attributes)


def endpoint(token: str, *, name: str = "shop", account: str = ACCOUNT) -> PlatformEndpoint:
    return PlatformEndpoint(uuid_text(os.urandom(16)), account, REGION, "GCM", name, token, 1_000)


def with_token(token: str) -> Any:
    return lambda one: msgspec.structs.replace(one, token=token)


@pytest.fixture
async def near(shared: Store) -> AsyncIterator[StoredAddressBooks]:  # noqa: F811
    books = make(shared)
    await books.start()
    yield books
    await books.stop()


@pytest.fixture
async def far(shared: Store) -> AsyncIterator[StoredAddressBooks]:  # noqa: F811
    """A second node on the same store."""
    books = make(shared)
    await books.start()
    yield books
    await books.stop()


async def test_applications_are_created_once_changed_and_listed_in_order(
    near: StoredAddressBooks, far: StoredAddressBooks
) -> None:
    made = await asyncio.gather(
        near.create_application(application(Enabled="true")),
        far.create_application(application(Enabled="false")),
    )
    assert made[0] == made[1]
    for name in ("b", "a"):
        await near.create_application(application(name))
    await near.create_application(application("a", OTHER))
    await until(lambda: len(far) == 4)
    found = far.applications(ACCOUNT, REGION, after=("", ""), count=2)
    assert [one.name for one in found] == ["a", "b"]
    rest = far.applications(ACCOUNT, REGION, after=("GCM", "b"), count=9)
    assert [one.name for one in rest] == ["shop"]
    await far.change_application(SHOP, lambda one: msgspec.structs.replace(one, attributes={}))
    assert far.application(SHOP) == application()
    with pytest.raises(NotFound):
        await near.change_application((*SHOP[:3], "absent"), lambda one: one)
    await near.delete_application((ACCOUNT, REGION, "GCM", "a"))
    await near.delete_application((ACCOUNT, REGION, "GCM", "a"))
    assert near.application((ACCOUNT, REGION, "GCM", "a")) is None
    assert near.application((OTHER, REGION, "GCM", "a")) is not None


async def test_a_change_finds_what_another_node_has_just_created(
    near: StoredAddressBooks, far: StoredAddressBooks
) -> None:
    await near.create_application(application())
    await far.change_application(
        SHOP, lambda one: msgspec.structs.replace(one, attributes={"Enabled": "false"})
    )
    found = far.application(SHOP)
    assert found is not None
    assert not found.is_enabled


async def test_a_token_has_one_endpoint_whose_id_stays(
    near: StoredAddressBooks, far: StoredAddressBooks
) -> None:
    await near.create_application(application())
    made = await asyncio.gather(
        *(books.create_endpoint(endpoint("t")) for books in (near, far, near, far))
    )
    assert len({one.id for one in made}) == 1
    first = made[0]
    other = await near.create_endpoint(endpoint("t", name="other"))
    assert other.id != first.id
    await near.change_endpoint(ACCOUNT, REGION, first.id, with_token("new"))
    await until(lambda: getattr(far.endpoint(ACCOUNT, REGION, first.id), "token", "") == "new")
    for books in (near, far):
        assert [one.id for one in books.endpoints(SHOP, after="", count=9)] == [first.id]
    again = await near.create_endpoint(endpoint("new"))
    assert again.id == first.id
    second = await near.create_endpoint(endpoint("t"))
    assert second.id != first.id, "the old token is free again"
    with pytest.raises(Conflict):
        await near.change_endpoint(ACCOUNT, REGION, first.id, with_token("t"))
    assert near.endpoint(OTHER, REGION, first.id) is None
    with pytest.raises(NotFound):
        await near.change_endpoint(OTHER, REGION, first.id, with_token("x"))
    await near.delete_endpoint(ACCOUNT, REGION, first.id)
    await near.delete_endpoint(ACCOUNT, REGION, first.id)
    assert [one.id for one in near.endpoints(SHOP, after="", count=9)] == [second.id]


async def test_an_application_is_deleted_with_its_endpoints_only(near: StoredAddressBooks) -> None:
    await near.create_application(application())
    for number in range(3):
        await near.create_endpoint(endpoint(f"t{number}"))
    kept = await near.create_endpoint(endpoint("t0", name="other"))
    await near.delete_application(SHOP)
    assert near.endpoints(SHOP, after="", count=9) == []
    assert near.endpoint(ACCOUNT, REGION, kept.id) == kept
    assert len(near) == 1
    await near.delete_all()
    assert len(near) == 0


async def test_secrets_are_wrapped_and_sealed_again(shared: Store) -> None:  # noqa: F811
    books = make(shared)
    await books.start()
    new = books.with_secrets(application(), SECRETS)
    await books.create_application(new)
    assert books.secrets(new) == SECRETS
    assert books.secrets(application()) == {}
    [entry] = (await shared.list(BOOKS_PREFIX))[0]
    assert b"hunter2" not in entry.value
    # Of another application, the same bytes cannot be opened.
    with pytest.raises(Damaged):
        books.secrets(msgspec.structs.replace(application("other"), secrets=new.secrets))
    await books.stop()

    ring = MasterKeyRing(b"n" * 32, old=(MASTER,))
    renewed = make(shared, ring=ring)
    await renewed.start()
    assert (await renewed.reseal(ring.rewrap)).count == 1
    found = renewed.application(SHOP)
    assert found is not None
    assert found.secrets != new.secrets
    assert renewed.secrets(found) == SECRETS
    await renewed.stop()


async def test_settings_for_text_messages(
    near: StoredAddressBooks, far: StoredAddressBooks
) -> None:
    assert near.sms(ACCOUNT, REGION) == SmsBook(ACCOUNT, REGION)

    def put(name: str) -> Any:
        return lambda book: msgspec.structs.replace(
            book, attributes={**book.attributes, name: "v"}, numbers={"+1": SandboxNumber()}
        )

    await asyncio.gather(
        *(books.change_sms(ACCOUNT, REGION, put(n)) for n in "abcd" for books in (near, far))
    )
    await until(lambda: set(near.sms(ACCOUNT, REGION).attributes) == set("abcd"))
    assert near.sms(OTHER, REGION).attributes == {}


# ── Limits and checks ────────────────────────────────────────────────────────────────────────


async def test_a_tenant_cannot_fill_the_books(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = size_of(endpoint("t"))
    monkeypatch.setattr(limits, "BOOKS_BYTES_MAX", 30 * room)
    books = make(store)
    await books.start()
    for number in range(3):
        await books.create_endpoint(endpoint(f"{number}"))
    with pytest.raises(QuotaExceeded, match="address books of this tenant"):
        await books.create_endpoint(endpoint("3"))
    await books.create_endpoint(endpoint("t", account=OTHER))
    [first, *_] = books.endpoints(SHOP, after="", count=1)
    grown = lambda one: msgspec.structs.replace(one, user_data="x" * 2_000)  # noqa: E731
    with pytest.raises(QuotaExceeded):
        await books.change_endpoint(ACCOUNT, REGION, first.id, grown)
    await books.delete_endpoint(ACCOUNT, REGION, first.id)
    await books.create_endpoint(endpoint("3"))
    await books.stop()


async def test_nothing_is_written_below_the_feature_level(store: SqliteStore) -> None:
    books = make(store, level=PUSH - 1)
    await books.start()
    for change in (
        books.create_application(application()),
        books.create_endpoint(endpoint("t")),
        books.change_sms(ACCOUNT, REGION, lambda book: book),
    ):
        with pytest.raises(Overloaded, match="penstock cluster upgrade"):
            await change
    assert (await store.list(BOOKS_PREFIX))[0] == []
    await books.stop()


INVALID: list[Any] = [
    application(account="1"),
    application("a/b"),
    application(""),
    msgspec.structs.replace(application(), platform="X"),
    msgspec.structs.replace(application(), region="../.."),
    msgspec.structs.replace(application(), created_at_ms=-1),
    application(EventDeliveryFailure="x" * limits.BOOK_ENTRY_BYTES_MAX),
    endpoint(""),
    endpoint("t", name="a/b"),
    msgspec.structs.replace(endpoint("t"), id="x"),
    SmsBook(ACCOUNT, REGION, numbers={"x": SandboxNumber()}),
    SmsBook(ACCOUNT, REGION, numbers={f"+{n}": SandboxNumber() for n in range(11)}),
]


@pytest.mark.parametrize("entry", INVALID, ids=range(len(INVALID)))
def test_invalid_entries_are_neither_written_nor_taken_from_other_nodes(entry: Any) -> None:
    with pytest.raises(InvalidRequest):
        encode_book_entry(entry)
    value = msgspec.json.encode(entry)
    with pytest.raises(InvalidRequest):
        decode_book_entry(value)
    key = book_key(entry)
    with pytest.raises(InvalidRequest):
        check_txn(Txn(compare=[(key, 0)], puts=[(key, value)], deletes=[]))


def test_other_nodes_can_put_an_entry_only_under_its_key_and_version() -> None:
    for entry in (application(), endpoint("t"), SmsBook(ACCOUNT, REGION)):
        key, value = book_key(entry), encode_book_entry(entry)
        assert decode_book_entry(value) == entry
        check_txn(Txn(compare=[(key, 0)], puts=[(key, value)], deletes=[]))
        for bad in (
            Txn(compare=[], puts=[(key, value)], deletes=[]),
            Txn(compare=[(f"{key}x", 0)], puts=[(f"{key}x", value)], deletes=[]),
            Txn(compare=[(key, 0)], puts=[(key, b"{}")], deletes=[]),
            Txn(compare=[(key, 0)], puts=[(key, value)], deletes=[], lease=1),
            Txn(compare=[], puts=[], deletes=[key]),
        ):
            with pytest.raises(InvalidRequest):
                check_txn(bad)


# ── Two nodes at once ────────────────────────────────────────────────────────────────────────

steps = st.tuples(
    st.sampled_from(["create", "create", "create", "token", "data", "delete", "forget app"]),
    st.integers(0, 1),  # node
    st.sampled_from(["shop", "other"]),
    st.sampled_from("abcd"),  # token
    st.sampled_from("abcd"),  # new token
)
rounds = st.lists(st.lists(steps, min_size=1, max_size=6), min_size=1, max_size=6)


class Race:
    def __init__(self, nodes: list[StoredAddressBooks]) -> None:
        self.nodes = nodes
        self.ids: list[str] = []

    async def step(self, kind: str, number: int, name: str, token: str, new: str) -> None:
        books = self.nodes[number]
        if kind == "create":
            made = await books.create_endpoint(endpoint(token, name=name))
            assert made.token == token
            self.ids.append(made.id)
        elif kind == "forget app":
            await books.delete_application((ACCOUNT, REGION, "GCM", name))
        elif self.ids:
            at = self.ids[(ord(token) + len(name)) % len(self.ids)]
            with suppress(NotFound, Conflict):
                if kind == "delete":
                    await books.delete_endpoint(ACCOUNT, REGION, at)
                elif kind == "token":
                    await books.change_endpoint(ACCOUNT, REGION, at, with_token(new))
                else:
                    change = lambda one: msgspec.structs.replace(one, user_data=new)  # noqa: E731
                    await books.change_endpoint(ACCOUNT, REGION, at, change)

    async def settle(self, store: Store) -> None:
        entries, _ = await store.list(BOOKS_PREFIX)
        stored = [decode_book_entry(entry.value) for entry in entries]
        by_name: dict[str, list[PlatformEndpoint]] = defaultdict(list)
        tokens = set()
        for one in stored:
            assert isinstance(one, PlatformEndpoint)
            by_name[one.application].append(one)
            tokens.add((one.application, one.token))
        assert len(tokens) == len(stored), "a token of an application has one endpoint"
        size = sum(map(size_of, stored))
        for books in self.nodes:

            def is_same(books: StoredAddressBooks = books) -> bool:
                for name in ("shop", "other"):
                    key = (ACCOUNT, REGION, "GCM", name)
                    found = list(books.endpoints(key, after="", count=99))
                    if found != sorted(by_name[name], key=lambda one: one.id):
                        return False
                return len(books) == len(stored) and books._bytes.total == size

            await until(is_same)


@settings(max_examples=25, deadline=None)
@given(rounds)
def test_random_changes_by_two_nodes_leave_both_with_what_the_store_has(
    plan: list[list[tuple[str, int, str, str, str]]],
) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = await SqliteStore.open(Path(folder) / "metadata.db")
            nodes = [make(store), make(store)]
            for books in nodes:
                await books.start()
            race = Race(nodes)
            for some in plan:
                await asyncio.gather(*(race.step(*step) for step in some))
                await race.settle(store)
            for books in nodes:
                await books.stop()
            await store.close()

    asyncio.run(run())
