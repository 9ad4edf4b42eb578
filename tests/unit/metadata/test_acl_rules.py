"""Access rules in the store: two nodes over one store, their own or that of a metadata service."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.unit.metadata.conftest import ACCOUNT, OTHER, until
from tests.unit.metadata.test_resource_configs import shared  # noqa: F401

from penstock.metadata.security import acl_rules
from penstock.metadata.security.acl_rules import AclRules, acl_key
from penstock.metadata.serving.entry_rules import check_txn
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store, Txn
from penstock.model import limits
from penstock.model.acls import Acl
from penstock.model.errors import InvalidRequest, QuotaExceeded
from penstock.wire.internal.faults import OutcomeUnknown

RULE = Acl(2, "t", 3, "User:ann", "*", 3, 3)


def rules(count: int, *, node: str = "n") -> list[Acl]:
    return [Acl(2, f"{node}{number}", 3, "User:*", "*", 2, 2) for number in range(count)]


class Node:
    def __init__(self, store: Store) -> None:
        self.changes = 0
        self.rules = AclRules(store, on_rules_change=self._count)

    def _count(self) -> None:
        self.changes += 1

    def of(self, account: str = ACCOUNT) -> set[Acl]:
        return set(self.rules.of(account) or ())


@pytest.fixture
async def near(shared: Store) -> AsyncIterator[Node]:  # noqa: F811
    node = Node(shared)
    await node.rules.start()
    yield node
    await node.rules.stop()


@pytest.fixture
async def far(shared: Store) -> AsyncIterator[Node]:  # noqa: F811
    """A second node on the same store."""
    node = Node(shared)
    await node.rules.start()
    yield node
    await node.rules.stop()


async def test_a_change_is_seen_here_at_once_and_elsewhere_by_the_watch(
    near: Node, far: Node
) -> None:
    many = rules(100)
    await near.rules.add(ACCOUNT, many)
    assert near.of() == set(many)
    assert near.of(OTHER) == set()
    await until(lambda: far.of() == set(many))
    assert far.changes == 100
    await far.rules.remove(ACCOUNT, many[1:])
    assert far.of() == {many[0]}
    await until(lambda: near.of() == {many[0]})
    await near.rules.remove_all(ACCOUNT)
    assert near.rules.of(ACCOUNT) is None
    await until(lambda: far.rules.of(ACCOUNT) is None)


async def test_changes_of_two_nodes_at_once_are_both_made(near: Node, far: Node) -> None:
    ours, theirs = rules(50), rules(50, node="f")
    await asyncio.gather(
        near.rules.add(ACCOUNT, [RULE, *ours]), far.rules.add(ACCOUNT, [*theirs, RULE])
    )
    await until(lambda: near.of() == far.of() == {RULE, *ours, *theirs})
    await asyncio.gather(
        near.rules.remove(ACCOUNT, [RULE, *theirs]), far.rules.remove(ACCOUNT, [RULE, *ours])
    )
    await until(lambda: near.of() == far.of() == set())


async def test_a_rule_that_memory_takes_for_an_existing_one_is_added_again(
    store: SqliteStore,
) -> None:
    """Deleted by another node, of which the watch has not told yet."""
    node = Node(store)
    await node.rules.start()
    try:
        await node.rules.add(ACCOUNT, [RULE])
        await node.rules.stop()  # it hears of nothing any more
        await store.delete(acl_key(ACCOUNT, RULE))
        await node.rules.add(ACCOUNT, [RULE])
        assert await store.get(acl_key(ACCOUNT, RULE)) is not None
        await store.delete(acl_key(ACCOUNT, RULE))
        await node.rules.remove(ACCOUNT, [RULE])  # there is nothing to remove
    finally:
        await node.rules.stop()


@pytest.mark.parametrize("is_done", [False, True])
async def test_an_unknown_outcome_is_settled_by_looking(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    node = Node(store)
    await node.rules.start()
    txn = store.txn
    lost = 0

    async def lose(**given: Any) -> int:
        nonlocal lost
        lost += 1
        if lost % 2:
            if is_done:
                await txn(**given)
            raise OutcomeUnknown("the reply was lost")
        return await txn(**given)

    monkeypatch.setattr(store, "txn", lose)
    try:
        await node.rules.add(ACCOUNT, [RULE])
        assert await store.get(acl_key(ACCOUNT, RULE)) is not None
        assert node.of() == {RULE}
        await node.rules.remove(ACCOUNT, [RULE])
        assert await store.get(acl_key(ACCOUNT, RULE)) is None
        await until(lambda: node.of() == set())
    finally:
        await node.rules.stop()


async def test_rules_are_bounded(near: Node, far: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ACLS_MAX", 5)
    await near.rules.add(OTHER, rules(3))
    await until(lambda: len(far.of(OTHER)) == 3)
    with pytest.raises(QuotaExceeded, match="have 3 of 5 access rules; 3 more"):
        await far.rules.add(ACCOUNT, rules(3))
    assert far.of() == set()
    await far.rules.add(ACCOUNT, rules(2))


async def test_they_are_there_after_a_restart(store: SqliteStore) -> None:
    for expected in (set(), {RULE}):
        node = Node(store)
        await node.rules.start()
        assert node.of() == expected
        await node.rules.add(ACCOUNT, [RULE])
        await node.rules.stop()


def test_the_metadata_service_takes_rules_at_their_own_place_only() -> None:
    key = acl_key(ACCOUNT, RULE)
    value = acl_rules._encode(RULE)
    check_txn(Txn(compare=[(key, 0)], puts=[(key, value)]))
    long = acl_rules._encode(Acl(2, "t" * 1_025, 3, "User:ann", "*", 3, 3))
    for at, wrong in (
        (key[:-1] + ("0" if key[-1] != "0" else "1"), value),
        (key.replace(ACCOUNT, "nobody"), value),
        (key, b"{}"),
        (key, long),
    ):
        with pytest.raises(InvalidRequest):
            check_txn(Txn(compare=[(at, 0)], puts=[(at, wrong)]))
    with pytest.raises(InvalidRequest, match="must be conditional"):
        check_txn(Txn(compare=(), puts=[(key, value)]))
    with pytest.raises(InvalidRequest, match="entries of one kind"):
        check_txn(Txn(compare=[(key, 0), ("/users/000000000000/ann", 0)], puts=[(key, value)]))
