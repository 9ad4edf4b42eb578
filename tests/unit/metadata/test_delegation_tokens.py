"""Delegation tokens in the store: two nodes over one store, their own or that of a service."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.unit.metadata.conftest import ACCOUNT, OTHER, until
from tests.unit.metadata.test_resource_configs import shared  # noqa: F401

from penstock.metadata.security.acl_rules import DelegationTokens, token_key
from penstock.metadata.serving.entry_rules import check_txn
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store, Txn
from penstock.model import limits
from penstock.model.errors import InvalidRequest, QuotaExceeded
from penstock.model.identity import DelegationToken
from penstock.wire.internal.faults import OutcomeUnknown

SECRET = b"secret"


def token(number: int = 0, *, account: str = ACCOUNT, expires_at_ms: int = 100) -> DelegationToken:
    return DelegationToken(
        f"{number:022}", account, "ann", 1, "ann", ("bob",), 10, expires_at_ms, 1_000
    )


def later(found: DelegationToken) -> DelegationToken:
    return msgspec.structs.replace(found, expires_at_ms=found.expires_at_ms + 1)


async def started(store: Store) -> DelegationTokens:
    tokens = DelegationTokens(store, SECRET)
    await tokens.start()
    return tokens


@pytest.fixture
async def near(shared: Store) -> AsyncIterator[DelegationTokens]:  # noqa: F811
    tokens = await started(shared)
    yield tokens
    await tokens.stop()


@pytest.fixture
async def far(shared: Store) -> AsyncIterator[DelegationTokens]:  # noqa: F811
    """Of a second node on the same store."""
    tokens = await started(shared)
    yield tokens
    await tokens.stop()


async def test_a_token_is_known_by_its_id_and_its_hmac_on_every_node(
    near: DelegationTokens, far: DelegationTokens
) -> None:
    made = token()
    await near.create(made)
    assert near.find(made.token_id) == made
    await until(lambda: far.find(made.token_id) == made)
    value = near.hmac_of(made.token_id)
    assert far.hmac_of(made.token_id) == value
    assert far.find_by_hmac(ACCOUNT, value) == made
    assert far.find_by_hmac(OTHER, value) is None
    assert list(far.of(ACCOUNT)) == [made]
    assert list(far.of(OTHER)) == []
    changed = await far.change(made.token_id, later)
    assert changed == later(made)
    assert far.find_by_hmac(ACCOUNT, value) == later(made)
    # Memory is behind, and the change is made of the newest value all the same.
    assert await near.change(made.token_id, later) == later(later(made))
    assert await near.change(made.token_id, lambda _: None) is not None
    assert (near.find(made.token_id), near.find_by_hmac(ACCOUNT, value)) == (None, None)
    await until(lambda: not far.of(ACCOUNT))
    assert await far.change(made.token_id, later) is None


async def test_expired_tokens_are_deleted_once(
    near: DelegationTokens, far: DelegationTokens
) -> None:
    await near.create(token(1, expires_at_ms=100))
    await near.create(token(2, expires_at_ms=101))
    await until(lambda: len(far.of(ACCOUNT)) == 2)
    assert await near.sweep(now_ms=100) == 0
    assert await near.sweep(now_ms=101) == 1
    assert await far.sweep(now_ms=101) in (0, 1)  # as far as it has heard
    assert list(near.of(ACCOUNT)) == [token(2, expires_at_ms=101)]
    await until(lambda: list(far.of(ACCOUNT)) == [token(2, expires_at_ms=101)])


@pytest.mark.parametrize("is_done", [False, True])
async def test_an_unknown_outcome_is_settled_by_looking(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    tokens = await started(store)
    txn = store.txn
    asked = 0

    async def lose(**given: Any) -> int:
        nonlocal asked
        asked += 1
        if asked % 2:
            if is_done:
                await txn(**given)
            raise OutcomeUnknown("the reply was lost")
        return await txn(**given)

    monkeypatch.setattr(store, "txn", lose)
    try:
        if is_done:
            await tokens.create(token())
        else:
            with pytest.raises(OutcomeUnknown):
                await tokens.create(token())
            await tokens.create(token())
        asked = 0
        assert tokens.find(token().token_id) == token()
        assert await tokens.change(token().token_id, lambda _: None) == token()
        assert await store.get(token_key(token().token_id)) is None
    finally:
        await tokens.stop()


async def test_tokens_are_bounded(near: DelegationTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOKENS_MAX", 1)
    await near.create(token(1))
    with pytest.raises(QuotaExceeded, match="1 of 1 delegation tokens"):
        await near.create(token(2, account=OTHER))


def test_the_metadata_service_takes_tokens_at_their_own_place_only() -> None:
    made = token()
    key, encode = token_key(made.token_id), msgspec.json.encode
    check_txn(Txn(compare=[(key, 0)], puts=[(key, encode(made))]))
    for at, wrong in (
        (token_key("0" * 21 + "1"), encode(made)),
        (key, b"{}"),
        (key, encode(msgspec.structs.replace(made, account="x"))),
        (key, encode(msgspec.structs.replace(made, renewers=("x",) * 101))),
        (key, encode(msgspec.structs.replace(made, owner="x" * 1_025))),
        (token_key("a/b"), encode(msgspec.structs.replace(made, token_id="a/b"))),
    ):
        with pytest.raises(InvalidRequest):
            check_txn(Txn(compare=[(at, 0)], puts=[(at, wrong)]))
    with pytest.raises(InvalidRequest, match="must be conditional"):
        check_txn(Txn(compare=(), puts=[(key, encode(made))]))
