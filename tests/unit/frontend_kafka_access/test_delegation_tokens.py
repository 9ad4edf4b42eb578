"""Delegation tokens through Kafka's own API: who may make, see, renew and end them, and who is let
in by one, for how long."""

import base64
from pathlib import Path
from typing import Any

import pytest
from tests.unit.frontend_kafka_access.stage import (
    OTHER,
    OWN,
    PASSWORD,
    SHA_256,
    SHA_512,
    Client,
    House,
    allow,
    house_on,
)
from tests.unit.frontend_kafka_access.test_acls import (
    ALL,
    ALLOW,
    create,
    rule,
    send_record,
    waiting_fetch,
)
from tests.unit.frontend_kafka_access.test_logins import is_in, is_refused

from penstock.model import limits
from penstock.model.identity import User
from penstock.model.levels import ACLS_STORED
from penstock.model.limits import TOKEN_LIFE_MS_MAX, TOKEN_RENEWAL_MS_MAX
from penstock.net.kafka.listener import HangUp
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from penstock.wire.kafka.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.wire.kafka.generated.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from penstock.wire.kafka.generated.expire_delegation_token import ExpireDelegationTokenRequest
from penstock.wire.kafka.generated.renew_delegation_token import RenewDelegationTokenRequest
from penstock.wire.kafka.primitives import ZERO_UUID

CREATE, RENEW, EXPIRE, DESCRIBE = 38, 39, 40, 41
DAY_MS = 24 * 3_600_000
NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
DISABLED = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
NOT_FOUND = ErrorCode.DELEGATION_TOKEN_NOT_FOUND
NO_TOKEN = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
EXPIRED = ErrorCode.DELEGATION_TOKEN_EXPIRED
TOKEN, USER = 6, 7  # types of resources
CREATE_TOKENS, DESCRIBE_TOKENS = 13, 14


async def made(
    client: Client,
    *renewers: str,
    owner: str | None = None,
    life_ms: int = -1,
    kind: str = "User",
) -> CreateDelegationTokenResponse:
    request = CreateDelegationTokenRequest(
        owner_principal_type=kind if owner else None,
        owner_principal_name=owner,
        renewers=[CreatableRenewers("User", name) for name in renewers],
        max_lifetime_ms=life_ms,
    )
    found = await client.ask(CREATE, request)
    assert isinstance(found, CreateDelegationTokenResponse)
    return found


async def renew(client: Client, hmac: bytes, period_ms: int = -1) -> tuple[int, int]:
    found = await client.ask(RENEW, RenewDelegationTokenRequest(hmac, period_ms))
    return found.error_code, found.expiry_timestamp_ms


async def expire(client: Client, hmac: bytes, period_ms: int = -1) -> tuple[int, int]:
    found = await client.ask(EXPIRE, ExpireDelegationTokenRequest(hmac, period_ms))
    return found.error_code, found.expiry_timestamp_ms


async def shown(client: Client, *owners: str, is_all: bool = True) -> list[str]:
    """Ids of the tokens that the client sees."""
    wanted = None if is_all else [DescribeDelegationTokenOwner("User", name) for name in owners]
    found = await client.ask(DESCRIBE, DescribeDelegationTokenRequest(wanted))
    assert found.error_code == 0
    return sorted(token.token_id for token in found.tokens)


async def log_in(
    house: House, token: CreateDelegationTokenResponse, mechanism: str = SHA_512
) -> tuple[Client, Any]:
    client = Client(house)
    password = base64.b64encode(token.hmac).decode()
    found = await client.scram(token.token_id, password, mechanism, is_token=True)
    return client, found


# ── Log-ins ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
async def test_a_token_lets_in_as_its_owner_until_it_expires(house: House, mechanism: str) -> None:
    await house.topic()
    await house.user("ann", allow("kafka:*"), account=OTHER)
    ann = await house.client("ann", account=OTHER)
    now_ms = house.clock.wall_ms()
    token = await made(ann, "spark")
    assert (token.error_code, token.principal_type, token.principal_name) == (0, "User", "ann")
    assert token.token_requester_principal_name == "ann"
    assert token.issue_timestamp_ms == now_ms
    assert token.expiry_timestamp_ms == now_ms + TOKEN_RENEWAL_MS_MAX == now_ms + DAY_MS
    assert token.max_timestamp_ms == now_ms + TOKEN_LIFE_MS_MAX == now_ms + 7 * DAY_MS
    assert (len(token.token_id), len(token.hmac)) == (22, 64)
    client, found = await log_in(house, token, mechanism)
    assert (found.error_code, found.session_lifetime_ms) == (0, DAY_MS)
    login = house.context.logins.of(client.connection)
    assert login.caller is not None
    assert (login.caller.account, login.caller.user) == (OTHER, "ann")
    assert await is_in(client)
    house.clock.advance(DAY_MS)
    assert not await is_in(client)
    house.clock.advance(1)
    _, found = await log_in(house, token, mechanism)
    assert is_refused(found)


async def test_a_wrong_or_unknown_token_is_refused_like_any_password(house: House) -> None:
    await house.user("ann")
    token = await made(await house.client("ann"))
    password = base64.b64encode(token.hmac).decode()
    for name, secret in (
        (token.token_id, password[:-4] + "AAA="),
        (token.token_id[::-1], password),
        ("ann", PASSWORD),  # a user is not a token
        (f"{OTHER}/{token.token_id}", password),
    ):
        assert is_refused(await Client(house).scram(name, secret, is_token=True)), name
    # A token is not a user, and its secret no password.
    assert is_refused(await Client(house).scram(token.token_id, password))
    assert is_refused(await Client(house, "127.0.0.1").plain(token.token_id, password))


async def test_salts_do_not_tell_who_exists(house: House) -> None:
    """A user that exists has a salt of its own, so the salt of a token by its name must differ for
    users that do not exist as well."""
    await house.user("ann")
    for name in ("ann", "nobody"):
        salts = set()
        for extension in (b"", b",tokenauth=true"):
            client = Client(house)
            await client.shake(SHA_256)
            first = await client.token(f"n,,n={name},r=12345678".encode() + extension)
            salts.add(first.auth_bytes.split(b",")[1])
        assert len(salts) == 2, name


async def test_a_client_goes_on_with_a_renewed_token(house: House) -> None:
    await house.user("ann")
    ann = await house.client("ann")
    token = await made(ann)
    client, _ = await log_in(house, token)
    house.clock.advance(DAY_MS - 1_000)
    ann = await house.client("ann")
    assert await renew(ann, token.hmac) == (0, house.clock.wall_ms() + DAY_MS)
    again = await client.scram(token.token_id, base64.b64encode(token.hmac).decode(), is_token=True)
    assert (again.error_code, again.session_lifetime_ms) == (0, DAY_MS)
    house.clock.advance(2_000)
    assert await is_in(client)


async def test_a_token_that_ended_ends_its_connections(house: House) -> None:
    topic = await house.topic()
    await house.user("ann", allow("kafka:*"))
    ann = await house.client("ann")
    tokens = [await made(ann), await made(ann)]
    clients = [(await log_in(house, token))[0] for token in tokens]
    assert (await expire(ann, tokens[0].hmac))[0] == 0
    delete = DeleteTopicsRequest(topics=[DeleteTopicState("t", ZERO_UUID)])
    with pytest.raises(HangUp, match="token was deleted"):
        await clients[0].ask(20, delete)
    assert house.catalog.find_id(topic.topic_id) == topic  # the request was not executed
    assert [await is_in(client) for client in clients] == [False, True]


async def test_a_fetch_that_waits_gets_nothing_once_its_token_has_ended(house: House) -> None:
    await house.topic()
    root = await house.root()
    await house.user("ann", allow("kafka:*"))
    ann = await house.client("ann")
    token = await made(ann)
    client, _ = await log_in(house, token)
    waiting = await waiting_fetch(house, client)
    await expire(ann, token.hmac)
    await send_record(root)
    with pytest.raises(HangUp, match="token was deleted"):
        await waiting


async def test_a_token_is_of_a_user_and_not_of_a_name(house: House) -> None:
    await house.user("ann")
    token = await made(await house.client("ann"))
    client, _ = await log_in(house, token)
    await house.identities.delete_user(OWN, "ann")
    assert not await is_in(client)
    await house.identities.create_user(User(OWN, "ann", created_at_ms=2))
    _, found = await log_in(house, token)
    assert is_refused(found)
    await house.password("ann", PASSWORD)
    assert await shown(await house.client("ann")) == []


async def test_a_log_in_by_token_lasts_no_longer_than_any(tmp_path: Path) -> None:
    async with house_on(tmp_path, login_ms=60_000) as house:
        await house.user("ann")
        token = await made(await house.client("ann"))
        _, found = await log_in(house, token)
        assert found.session_lifetime_ms == 60_000


# ── Who may ask ──────────────────────────────────────────────────────────────────────────────


async def asked_all(client: Client, hmac: bytes) -> list[int]:
    described = await client.ask(DESCRIBE, DescribeDelegationTokenRequest(None))
    return [
        (await made(client)).error_code,
        (await renew(client, hmac))[0],
        (await expire(client, hmac, 1_000))[0],
        described.error_code,
    ]


async def test_a_token_makes_and_changes_no_tokens(house: House) -> None:
    await house.user("ann", allow("*"))
    token = await made(await house.client("ann"))
    client, _ = await log_in(house, token)
    assert await asked_all(client, token.hmac) == [NOT_ALLOWED] * 4


async def test_without_authentication_there_are_no_tokens(tmp_path: Path) -> None:
    async with house_on(tmp_path, is_auth_on=False) as house:
        await house.user("ann")
        client = Client(house)
        assert await asked_all(client, bytes(64)) == [NOT_ALLOWED] * 4
        rejected = await made(client)
        assert rejected.principal_name == "ANONYMOUS"
        assert rejected.token_requester_principal_name == "ANONYMOUS"
        assert (await client.plain("ann", "any")).error_code == 0
        assert await asked_all(client, bytes(64)) == [NOT_ALLOWED] * 4


async def test_below_the_level_there_are_no_tokens(house: House) -> None:
    house.context.level = lambda: ACLS_STORED - 1
    await house.user("ann")
    assert await asked_all(await house.client("ann"), bytes(64)) == [DISABLED] * 4


@pytest.mark.parametrize(
    ("life_ms", "max_ms", "first_ms"),
    [
        (-1, 7 * DAY_MS, DAY_MS),
        (0, 7 * DAY_MS, DAY_MS),
        (2 * DAY_MS, 2 * DAY_MS, DAY_MS),
        (1_000, 1_000, 1_000),
        (2**62, 7 * DAY_MS, DAY_MS),
    ],
)
async def test_a_token_lives_as_long_as_asked_for_and_allowed(
    house: House, life_ms: int, max_ms: int, first_ms: int
) -> None:
    await house.user("ann")
    token = await made(await house.client("ann"), life_ms=life_ms)
    now_ms = house.clock.wall_ms()
    assert token.max_timestamp_ms == now_ms + max_ms
    assert token.expiry_timestamp_ms == now_ms + first_ms


async def test_owners_and_renewers_renew_and_end_a_token(house: House) -> None:
    for name in ("ann", "spark", "eve"):
        await house.user(name)
    ann, spark, eve = [await house.client(name) for name in ("ann", "spark", "eve")]
    token = await made(ann, "spark")
    mismatch = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    now_ms = house.clock.wall_ms()
    assert await renew(spark, token.hmac, 2_000) == (0, now_ms + 2_000)
    assert await renew(ann, token.hmac, 10 * DAY_MS) == (0, now_ms + DAY_MS)
    assert await expire(spark, token.hmac, 3_000) == (0, now_ms + 3_000)
    assert await renew(eve, token.hmac) == (mismatch, -1)
    assert await expire(eve, token.hmac) == (mismatch, -1)
    assert await renew(ann, bytes(64)) == (NOT_FOUND, -1)
    assert await expire(ann, b"") == (NOT_FOUND, -1)
    house.clock.advance(3_001)
    assert await renew(ann, token.hmac) == (EXPIRED, -1)
    assert await expire(ann, token.hmac, 5_000) == (EXPIRED, -1)
    assert await shown(ann) == []
    assert await expire(ann, token.hmac) == (0, house.clock.wall_ms())
    assert await expire(ann, token.hmac) == (NOT_FOUND, -1)


async def test_a_renewal_ends_with_the_life_of_the_token(house: House) -> None:
    await house.user("ann")
    ann = await house.client("ann")
    token = await made(ann, life_ms=DAY_MS + 1_000)
    house.clock.advance(DAY_MS)
    assert await renew(ann, token.hmac) == (0, token.max_timestamp_ms)
    assert await expire(ann, token.hmac, 10 * DAY_MS) == (0, token.max_timestamp_ms)


# ── Tokens of others ─────────────────────────────────────────────────────────────────────────


async def test_tokens_of_others_are_given_by_rules_and_no_policy(house: House) -> None:
    root = await house.root()
    await house.user("ann")
    await house.user("eve", allow("*"))
    eve = await house.client("eve")
    assert (await made(eve, owner="ann")).error_code == NO_TOKEN
    about_ann = rule(resource_type=USER, name="User:ann", principal="User:eve")
    await create(root, (*about_ann[:5], CREATE_TOKENS, ALLOW))
    token = await made(eve, owner="ann")
    assert (token.error_code, token.principal_name) == (0, "ann")
    assert token.token_requester_principal_name == "eve"
    login, _ = await log_in(house, token)
    caller = house.context.logins.of(login.connection).caller
    assert caller is not None
    assert caller.user == "ann"
    assert await shown(eve) == []  # it is not theirs
    assert await shown(await house.client("ann")) == [token.token_id]
    assert await shown(root) == [token.token_id]
    for what in (
        (*about_ann[:5], DESCRIBE_TOKENS, ALLOW),
        rule(resource_type=TOKEN, name=token.token_id, principal="User:eve", operation=8),
    ):
        await create(root, what)
        assert await shown(eve) == [token.token_id]
        await house.identities.remove_acls(OWN, list(house.identities.acls(OWN) or ()))
        assert await shown(eve) == []


async def test_a_token_of_an_operator_is_for_operators(house: House) -> None:
    root = await house.root()
    await house.user("eve", allow("*"))
    eve = await house.client("eve")
    await create(
        root,
        rule(resource_type=USER, name="*", principal="User:*", operation=ALL),
        rule(resource_type=TOKEN, name="*", principal="User:*", operation=ALL),
    )
    assert (await made(eve, owner="root")).error_code == NO_TOKEN
    token = await made(root)
    assert token.error_code == 0
    assert await shown(eve) == []
    assert (await made(root, owner="eve")).error_code == 0


async def test_only_users_that_exist_have_tokens(house: House) -> None:
    root = await house.root()
    assert (await made(root, owner="nobody")).error_code == NO_TOKEN
    assert (await made(root, owner="root", kind="Group")).error_code == NO_TOKEN
    request = CreateDelegationTokenRequest(renewers=[CreatableRenewers("Group", "staff")])
    found = await root.ask(CREATE, request)
    assert found.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE


async def test_tokens_are_of_one_account(house: House) -> None:
    await house.user("ann")
    await house.user("ann", account=OTHER)
    own, other = await house.client("ann"), await house.client("ann", account=OTHER)
    token = await made(own, "ann")
    assert await shown(other) == []
    assert await renew(other, token.hmac) == (NOT_FOUND, -1)
    assert await expire(other, token.hmac) == (NOT_FOUND, -1)
    assert await shown(own) == [token.token_id]


async def test_a_list_is_of_the_owners_named(house: House) -> None:
    root = await house.root()
    for name in ("ann", "bob"):
        await house.user(name)
    first = await made(await house.client("ann"), "bob")
    second = await made(await house.client("bob"))
    assert await shown(root) == sorted([first.token_id, second.token_id])
    assert await shown(root, is_all=False) == []
    assert await shown(root, "ann", is_all=False) == [first.token_id]
    assert len(await shown(root, "bob", is_all=False)) == 2  # of one it may renew
    found = await root.ask(DESCRIBE, DescribeDelegationTokenRequest(None))
    token = next(each for each in found.tokens if each.token_id == first.token_id)
    assert token.hmac == first.hmac
    assert [(each.principal_type, each.principal_name) for each in token.renewers] == [
        ("User", "bob")
    ]


async def test_tokens_are_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOKENS_PER_TENANT_MAX", 2)
    await house.user("ann")
    ann = await house.client("ann")
    codes = [(await made(ann)).error_code for _ in range(3)]
    assert codes == [0, 0, ErrorCode.POLICY_VIOLATION]
    renewers = [f"u{number}" for number in range(101)]
    assert (await made(ann, *renewers)).error_code == ErrorCode.INVALID_REQUEST
    house.clock.advance(DAY_MS + 1)
    assert await house.tokens.sweep(now_ms=house.clock.wall_ms()) == 2
    assert (await made(await house.client("ann"))).error_code == 0
