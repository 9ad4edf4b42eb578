"""Who is let in, by what, for how long; and that everybody else is told the same after the same
time."""

import asyncio
import base64
import logging
from pathlib import Path

import msgspec
import pytest
from tests.unit.frontend_kafka_access.stage import (
    HANDSHAKE,
    OTHER,
    OWN,
    PASSWORD,
    PLAIN,
    SHA_256,
    SHA_512,
    Client,
    House,
    allow,
    house_on,
)

from penstock.model.identity import KeyStatus, Quotas, User
from penstock.net.kafka.listener import HangUp
from penstock.wire.kafka.apis import APIS, LENGTH_BYTES, encode_request_frame
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.api_versions import ApiVersionsRequest
from penstock.wire.kafka.generated.metadata import MetadataRequest
from penstock.wire.kafka.generated.sasl_authenticate import SaslAuthenticateResponse
from penstock.wire.kafka.generated.sasl_handshake import SaslHandshakeRequest

API_VERSIONS, METADATA = 18, 3
ALL_TOPICS = MetadataRequest(topics=None)
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


async def is_in(client: Client) -> bool:
    try:
        await client.ask(METADATA, ALL_TOPICS)
    except HangUp:
        return False
    return True


def is_refused(found: SaslAuthenticateResponse) -> bool:
    """As all refusals are: with this code and text and nothing else."""
    told = (found.error_code, found.error_message, found.auth_bytes, found.session_lifetime_ms)
    return told == (FAILED, FAILED.message, b"", 0)


# ── Before anybody is known ──────────────────────────────────────────────────────────────────


async def test_a_stranger_is_answered_what_it_takes_to_log_in_and_nothing_else(
    house: House,
) -> None:
    assert (await Client(house).ask(API_VERSIONS, ApiVersionsRequest("c", "1"))).error_code == 0
    for key in APIS:
        if key in (API_VERSIONS, 17, 36):
            continue
        client = Client(house)
        header = encode_request_frame(
            APIS[key], APIS[key].version_max, correlation_id=1, client_id="me", body=b""
        )
        with pytest.raises(HangUp, match="not logged in"):
            await house.frontend.answer(client.connection, header[LENGTH_BYTES:])


async def test_a_stranger_is_still_one_between_two_tokens(house: House) -> None:
    await house.user("ann", allow("*"))
    client = Client(house)
    await client.shake(SHA_256)
    await client.token(b"n,,n=ann,r=12345678")
    assert not await is_in(client)


async def test_frames_of_strangers_are_small_until_they_are_in(house: House) -> None:
    await house.user("ann", allow("*"))
    client = Client(house)
    reader = client.connection._reader
    assert reader.frame_bytes_max == 65_536
    await client.scram("ann", "wrong")
    assert reader.frame_bytes_max == 65_536
    client = await house.client("ann")
    assert client.connection._reader.frame_bytes_max == 104_857_600


async def test_mechanisms_that_are_not_offered_are_named_in_the_refusal(house: House) -> None:
    client = Client(house)
    found = await client.shake("GSSAPI")
    assert found.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert list(found.mechanisms) == [SHA_256, SHA_512]
    assert (await client.shake(SHA_512)).error_code == 0  # and another may be chosen


async def test_requests_out_of_order_end_the_connection(house: House) -> None:
    client = Client(house)
    found = await client.token(b"\0ann\0x")
    assert found.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.connection._is_ending
    client = Client(house)
    await client.shake(SHA_256)
    assert (await client.shake(SHA_256)).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.connection._is_ending
    await house.user("ann", allow("*"))
    client = await house.client("ann")
    assert (await client.shake(SHA_256)).error_code == ErrorCode.ILLEGAL_SASL_STATE


# ── SCRAM ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
@pytest.mark.parametrize("version", [0, 1, 2])
async def test_scram_lets_in_who_knows_the_password(
    house: House, mechanism: str, version: int
) -> None:
    await house.user("ann", allow("*"))
    client = Client(house)
    found = await client.scram("ann", PASSWORD, mechanism, version)
    assert (found.error_code, found.error_message, found.session_lifetime_ms) == (0, None, 0)
    assert await is_in(client)
    refused = Client(house)
    assert is_refused(await refused.scram("ann", "wrong", mechanism))
    assert refused.connection._is_ending


async def test_a_user_of_another_account_says_which(house: House) -> None:
    await house.user("ann", allow("*"))
    await house.user("bob", allow("*"), account=OTHER)
    assert is_refused(await Client(house).scram("bob"))
    client = await house.client("bob", account=OTHER)
    login = house.context.logins.of(client.connection)
    assert login.caller is not None
    assert (login.caller.account, login.caller.user) == (OTHER, "bob")


async def test_an_access_key_can_be_used_with_scram_as_well(house: House) -> None:
    await house.user("ann", allow("*"), password=None)
    key, secret = await house.key("ann")
    for mechanism in (SHA_256, SHA_512, SHA_256):
        client = Client(house)
        assert (await client.scram(key.key_id, secret, mechanism)).error_code == 0
        assert await is_in(client)
        assert is_refused(await Client(house).scram(key.key_id, "x" + secret, mechanism))


async def test_nobody_learns_who_exists(house: House) -> None:
    """Up to the very end a made-up user is treated as a real one, each time alike."""
    await house.user("ann", allow("*"))
    key, _ = await house.key("ann")

    async def first(name: str) -> tuple[str, str]:
        client = Client(house)
        await client.shake(SHA_256)
        found = await client.token(f"n,,n={name},r=12345678".encode())
        assert found.error_code == 0
        fields = dict(part.split("=", 1) for part in found.auth_bytes.decode().split(","))
        assert len(base64.b64decode(fields["s"])) == 16
        return fields["s"], fields["i"]

    assert await first("nobody") == await first("nobody") != await first("somebody")
    assert await first(key.key_id) == await first(key.key_id)
    assert await first("ann") == await first("ann")
    for name in ("nobody", "ann", key.key_id, f"{OTHER}/ann"):
        assert is_refused(await Client(house).scram(name, "wrong"))


async def test_every_refusal_takes_the_same_time(tmp_path: Path) -> None:
    async with house_on(tmp_path, login_refusal_ms=150) as house:
        await house.user("ann", allow("*"))
        key, _ = await house.key("ann")
        loop = asyncio.get_running_loop()
        took = []
        for name in ("nobody", "ann", key.key_id):
            for is_scram in (False, True):
                client = Client(house, peer="127.0.0.1")
                began = loop.time()
                found = await (
                    client.scram(name, "wrong") if is_scram else client.plain(name, "wrong")
                )
                took.append(loop.time() - began)
                assert is_refused(found)
        assert min(took) >= 0.15


async def test_what_was_said_once_cannot_be_said_again(house: House) -> None:
    """The whole of a log-in that worked, sent once more on another connection."""
    await house.user("ann", allow("*"))
    client, said = Client(house), []
    ask = client.token

    async def heard(token: bytes, version: int = 2) -> SaslAuthenticateResponse:
        said.append(token)
        return await ask(token, version)

    client.token = heard  # type: ignore[method-assign]
    assert (await client.scram("ann")).error_code == 0
    thief = Client(house)
    await thief.shake(SHA_256)
    assert (await thief.token(said[0])).error_code == 0
    assert is_refused(await thief.token(said[1]))
    assert not await is_in(thief)


async def test_after_a_refusal_there_is_no_second_try(house: House) -> None:
    await house.user("ann", allow("*"))
    client = Client(house)
    assert is_refused(await client.scram("ann", "wrong"))
    assert (await client.token(b"n,,n=ann,r=12345678")).error_code == ErrorCode.ILLEGAL_SASL_STATE


@pytest.mark.parametrize("token", [b"", b"\xff" * 30, b"n,,n=ann,r=1", b"p=x,,n=a,r=12345678"])
async def test_tokens_that_are_none_are_refused(house: House, token: bytes) -> None:
    client = Client(house)
    await client.shake(SHA_256)
    assert is_refused(await client.token(token))


# ── PLAIN ────────────────────────────────────────────────────────────────────────────────────


async def test_plain_is_offered_where_nobody_can_listen(house: House, tmp_path: Path) -> None:
    far, near, tls = Client(house), Client(house, "127.0.0.1"), Client(house, is_tls=True)
    found = await far.shake(PLAIN)
    assert found.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert PLAIN not in found.mechanisms
    assert (await far.token(b"\0ann\0x")).error_code == ErrorCode.ILLEGAL_SASL_STATE
    for client in (near, tls, Client(house, "::1")):
        assert (await client.shake(PLAIN)).error_code == 0
    async with house_on(tmp_path / "insecure", is_insecure=True) as other:
        assert (await Client(other).shake(PLAIN)).error_code == 0


async def test_plain_takes_a_key_with_its_secret_or_a_user_with_its_password(
    house: House,
) -> None:
    await house.user("ann", allow("*"))
    await house.user("bob", allow("*"), mechanisms=(SHA_512,), account=OTHER)
    key, secret = await house.key("ann")
    for name, password in ((key.key_id, secret), ("ann", PASSWORD), (f"{OTHER}/bob", PASSWORD)):
        client = Client(house, "127.0.0.1")
        assert (await client.plain(name, password)).error_code == 0
        assert await is_in(client)
        assert is_refused(await Client(house, "127.0.0.1").plain(name, password + "x"))
    for name, password in (("ann", secret), (key.key_id, PASSWORD), ("nobody", PASSWORD)):
        assert is_refused(await Client(house, "127.0.0.1").plain(name, password))
    await house.identities.flush()
    used = house.identities.key(key.key_id)
    assert used is not None
    assert used.last_used_at_ms > 0


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\0\0",
        b"\0ann",
        b"\0ann\0",
        b"\0\0secret",
        b"root\0ann\0correct horse",
        b"\0ann\0correct horse\0",
        b"\0\xff\0x",
        b"\0ann\0" + b"x" * 1_025,
        b"\0" + b"a" * 257 + b"\0x",
    ],
)
async def test_a_plain_message_that_is_none_is_refused(house: House, token: bytes) -> None:
    await house.user("ann", allow("*"))
    client = Client(house, "127.0.0.1")
    await client.shake(PLAIN)
    assert is_refused(await client.token(token))


async def test_a_password_is_in_no_log(house: House, caplog: pytest.LogCaptureFixture) -> None:
    await house.user("ann", allow("*"))
    key, secret = await house.key("ann")
    with caplog.at_level(logging.DEBUG):
        for name, password in (("ann", "canary-7"), (key.key_id, secret), ("canary-7", "x")):
            await Client(house, "127.0.0.1").plain(name, password)
            await Client(house).scram(name, password)
    text = "\n".join(f"{each.getMessage()} {each.__dict__}" for each in caplog.records)
    assert "login rejected" in text
    assert "canary-7" not in text
    assert secret not in text


# ── The oldest form ──────────────────────────────────────────────────────────────────────────


async def test_after_a_handshake_of_version_0_frames_are_tokens(house: House) -> None:
    await house.user("ann", allow("*"))
    client = Client(house, "127.0.0.1")
    assert (await client.shake(PLAIN, version=0)).error_code == 0
    token = b"\0ann\0" + PASSWORD.encode()
    assert await house.frontend.answer(client.connection, token) == (b"",)
    assert await is_in(client)
    client = Client(house, "127.0.0.1")
    await client.shake(PLAIN, version=0)
    with pytest.raises(HangUp):
        await house.frontend.answer(client.connection, b"\0ann\0wrong")
    assert not await is_in(client)


# ── How long it lasts ────────────────────────────────────────────────────────────────────────


async def test_a_log_in_ends_with_what_it_rests_on(house: House) -> None:
    await house.user("ann", allow("*"))
    key, secret = await house.key("ann")
    by_key, by_scram, by_password = Client(house, "127.0.0.1"), Client(house), Client(house, "::1")
    await by_key.plain(key.key_id, secret)
    await by_scram.scram("ann")
    await by_password.plain("ann", PASSWORD)
    await house.identities.set_key_status(key.key_id, KeyStatus.DISABLED)
    assert not await is_in(by_key)
    assert await is_in(by_scram)
    assert is_refused(await Client(house, "127.0.0.1").plain(key.key_id, secret))
    assert is_refused(await Client(house).scram(key.key_id, secret))
    await house.password("ann", "another", SHA_256)
    assert not await is_in(by_scram)
    assert await is_in(by_password)  # with the other mechanism's, which is the same as before
    await house.identities.delete_user(OWN, "ann")
    assert not await is_in(by_password)


async def test_a_suspended_tenant_is_out_and_stays_out(house: House) -> None:
    await house.user("ann", allow("*"))
    client = await house.client("ann")
    suspended = lambda tenant: msgspec.structs.replace(tenant, is_suspended=True)  # noqa: E731
    await house.identities.change_tenant(OWN, suspended)
    assert not await is_in(client)
    assert is_refused(await Client(house).scram("ann"))


async def test_a_change_elsewhere_does_not_end_a_log_in(house: House) -> None:
    await house.user("ann", allow("*"))
    client = await house.client("ann")
    await house.user("bob", allow("*"))
    await house.identities.delete_user(OWN, "bob")
    assert await is_in(client)


async def test_who_becomes_an_operator_is_one_at_once(house: House) -> None:
    await house.user("ann", allow("*"))
    client = await house.client("ann")

    def promoted(user: User) -> User:
        return msgspec.structs.replace(user, is_operator=True)

    await house.identities.change_user(OWN, "ann", promoted)
    assert await is_in(client)
    caller = house.context.logins.of(client.connection).caller
    assert caller is not None
    assert caller.is_operator


async def test_a_log_in_may_be_good_for_a_time_only(tmp_path: Path) -> None:
    async with house_on(tmp_path, login_ms=10_000) as house:
        await house.user("ann", allow("*"))
        await house.user("bob", allow("*"))
        client = Client(house)
        assert (await client.scram("ann")).session_lifetime_ms == 10_000
        assert (await client.shake(SHA_256)).error_code == ErrorCode.ILLEGAL_SASL_STATE  # too soon
        client = await house.client("ann")
        house.clock.advance(9_000)
        assert await is_in(client)
        assert (await client.scram("ann", mechanism=SHA_512)).error_code == 0  # on the same one
        house.clock.advance(9_000)
        assert await is_in(client)
        house.clock.advance(1_000)
        assert not await is_in(client)
        client = await house.client("ann")
        house.clock.advance(2_000)
        assert is_refused(await client.scram("bob"))  # another user than before


def counted_connections(house: House) -> int:
    assert house.context.quotas is not None
    return house.context.quotas.used(OWN)["connections_max"]


async def test_a_tenant_has_so_many_connections_and_gets_them_back(house: House) -> None:
    await house.tenant(quotas=Quotas(connections_max=2))
    await house.user("ann", allow("*"))
    first = await house.client("ann")
    await house.client("ann")
    found = await Client(house).scram("ann")
    assert found.error_code == FAILED
    assert "has 2 of 2 connections" in (found.error_message or "")
    assert counted_connections(house) == 2
    first.lose()
    await house.client("ann")


async def test_connections_of_a_tenant_without_a_limit_are_not_counted(house: House) -> None:
    await house.tenant(quotas=Quotas(connections_max=0))
    await house.user("ann", allow("*"))
    await house.client("ann")
    assert counted_connections(house) == 0


# ── With authentication off ──────────────────────────────────────────────────────────────────


async def test_without_authentication_everybody_is_believed(tmp_path: Path) -> None:
    async with house_on(tmp_path, is_auth_on=False) as house:
        assert await is_in(Client(house))
        for name, account, password in (("ann", OWN, "anything"), (OTHER, OTHER, "")):
            client = Client(house)
            assert (await client.plain(name, password)).error_code == 0
            caller = house.context.logins.of(client.connection).caller
            assert caller is not None
            assert (caller.account, caller.user, caller.is_trusted) == (account, name, True)


async def test_without_authentication_scram_needs_a_password_that_is_known(
    tmp_path: Path,
) -> None:
    async with house_on(tmp_path, is_auth_on=False) as house:
        await house.user("ann")
        client = Client(house)
        assert (await client.scram("ann")).error_code == 0
        caller = house.context.logins.of(client.connection).caller
        assert caller is not None
        assert caller.is_trusted
        found = await Client(house).scram("bob")
        assert found.error_code == FAILED
        assert "Use PLAIN" in (found.error_message or "")


async def test_a_handshake_that_is_no_handshake_ends_the_connection(house: House) -> None:
    client = Client(house)
    body = APIS[HANDSHAKE].codec().encode_request(SaslHandshakeRequest(PLAIN), 1)
    frame = encode_request_frame(
        APIS[HANDSHAKE], 1, correlation_id=1, client_id="me", body=body[:-2]
    )
    with pytest.raises(HangUp):
        await house.frontend.answer(client.connection, frame[LENGTH_BYTES:])
