"""Passwords as a target: logins that keep the server busy, and first messages of SCRAM that tell
who exists."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from scramp import ScramClient  # type: ignore[import-untyped]
from tests.attacks.frames import KEYS, Wire
from tests.attacks.kit import EVERYTHING, Operator
from tests.attacks.test_logins import begin, fields_of, logged_in, plain, say, scram_first
from tests.harness.server import Server
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

from penstock.metadata.security import identity_entries
from penstock.model.limits import SCRAM_ITERATIONS_MAX
from penstock.wire.kafka import scram
from penstock.wire.kafka.apis import APIS
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.alter_user_scram_credentials import ScramCredentialUpsertion
from penstock.wire.kafka.generated.sasl_authenticate import SaslAuthenticateRequest

LOGIN_SECONDS_MAX = 1.0
ATTACKERS = 40
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED


# ── How much work a login is ─────────────────────────────────────────────────────────────────
def put_password(operator: Operator, path: str, iterations: int, mechanism: str = SHA_256) -> int:
    """Ask the admin API to store a password; the status of the reply."""
    salt, digest = os.urandom(16), scram.DIGESTS[mechanism]
    salted = hashlib.pbkdf2_hmac(digest, PASSWORD.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    keys = {
        "salt": salt,
        "stored_key": hashlib.new(digest, client_key).digest(),
        "server_key": hmac.digest(salted, b"Server Key", digest),
    }
    credential = {name: base64.b64encode(data).decode() for name, data in keys.items()}
    asked = {"mechanism": mechanism, "iterations": iterations, **credential}
    return operator.try_("PUT", path, {"credentials": [asked]})[0]


def test_every_api_has_the_same_bound_of_iterations(locked: Server, operator: Operator) -> None:
    user, _ = operator.user(EVERYTHING)
    with logged_in(locked) as wire:
        for iterations, is_taken in ((16_384, True), (16_385, False)):
            status = put_password(operator, f"users/{user}/password", iterations)
            assert status == (200 if is_taken else 400)
            name = f"{user}-{iterations}"  # made if the password is taken
            asked = ScramCredentialUpsertion(
                name, mechanism=1, iterations=iterations, salt=bytes(16), salted_password=bytes(32)
            )
            reply = wire.ask("AlterUserScramCredentials", 0, upsertions=[asked])
            code = reply.results[0].error_code
            assert code == (0 if is_taken else ErrorCode.UNACCEPTABLE_CREDENTIAL)
            assert operator.try_("GET", f"users/{name}")[0] == (200 if is_taken else 404)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """A server in this process, with user ann in its own tenant."""
    async with house_on(tmp_path) as house:
        await house.user("ann", allow("*"))
        yield house


async def put_older_password(
    house: House, monkeypatch: pytest.MonkeyPatch, iterations: int, name: str = "bob"
) -> None:
    """Store a password as a version did that had no such bound."""
    salt = os.urandom(16)
    salted = scram.salted_password(SHA_512, PASSWORD.encode(), salt=salt, iterations=iterations)
    credential = scram.credential_of(
        OTHER, name, SHA_512, salted=salted, salt=salt, iterations=iterations
    )
    with monkeypatch.context() as older:
        older.setattr(identity_entries, "check_scram", lambda _credential: None)
        await house.identities.put_scram(credential)


async def test_a_larger_count_that_is_stored_still_works(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.user("bob", allow("*"), account=OTHER, password=None)
    await put_older_password(house, monkeypatch, SCRAM_ITERATIONS_MAX + 1)
    full = f"{OTHER}/bob"
    assert (await Client(house).scram(full, PASSWORD, SHA_512)).error_code == 0
    assert (await Client(house, "127.0.0.1").plain(full, PASSWORD)).error_code == 0
    assert (await Client(house, "127.0.0.1").plain(full, "wrong")).error_code == FAILED


async def test_wrong_logins_of_one_tenant_do_not_delay_another(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.user("bob", allow("*"), account=OTHER, password=None)
    # Together they need seconds, however many threads there are.
    await put_older_password(house, monkeypatch, 300_000)

    async def wrong() -> None:
        await Client(house, "127.0.0.1").plain(f"{OTHER}/bob", "wrong")

    attacks = [asyncio.create_task(wrong()) for _ in range(ATTACKERS)]
    await asyncio.sleep(0)
    try:
        for name, password, code in (("ann", PASSWORD, 0), ("nobody", "wrong", FAILED)):
            async with asyncio.timeout(LOGIN_SECONDS_MAX):
                found = await Client(house, "127.0.0.1").plain(name, password)
            assert found.error_code == code
        assert sum(task.done() for task in attacks) < ATTACKERS / 2, "no attack was under way"
    finally:
        for task in attacks:
            task.cancel()
        await asyncio.gather(*attacks, return_exceptions=True)


async def test_logins_as_unknown_users_count_for_the_address(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many names the client makes up, and addresses of its own IPv6 network it uses."""
    may_end = threading.Event()
    derive = scram.salted_password

    def held(mechanism: str, password: bytes, *, salt: bytes, iterations: int) -> bytes:
        assert password != b"wrong" or may_end.wait(30.0)
        return derive(mechanism, password, salt=salt, iterations=iterations)

    monkeypatch.setattr(scram, "salted_password", held)
    derivations = house.context.logins._passwords._hashing
    attacks = [
        asyncio.create_task(
            Client(house, f"2001:db8::{number:x}", is_tls=True).plain(f"nobody-{number}", "wrong")
        )
        for number in range(1, ATTACKERS + 1)
    ]
    try:
        async with asyncio.timeout(10.0):
            while sum(map(len, derivations._waiting.values())) < ATTACKERS - 1:
                await asyncio.sleep(0.01)
        assert len(derivations._running) == 1
        found = await Client(house, "2001:db8::1", is_tls=True).plain("ann", PASSWORD)
        assert found.error_code == 0, "a known user counts for the tenant"
    finally:
        may_end.set()
    for task in attacks:
        assert (await task).error_code == FAILED


def test_many_wrong_logins_do_not_delay_another_tenant(locked: Server, operator: Operator) -> None:
    """With the largest count that can be set, on real connections. The threads would need seconds
    for so many logins."""
    tenant = operator.tenant()
    victim, _ = operator.user(EVERYTHING)
    name, _ = operator.user(EVERYTHING, tenant=tenant)
    where = f"users/{name}/password?tenant={tenant}"
    assert put_password(operator, where, SCRAM_ITERATIONS_MAX, SHA_512) == 200
    assert put_password(operator, f"users/{victim}/password", 4_096, SHA_512) == 200
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(locked)) for _ in range(10 * ATTACKERS + 1)]
        for wire in wires:
            begin(wire, "PLAIN")
        own = wires.pop()
        request = SaslAuthenticateRequest(plain(f"{tenant}/{name}", "wrong"))
        body = APIS[KEYS["SaslAuthenticate"]].codec().encode_request(request, 2)
        for wire in wires:
            wire.send(wire.frame("SaslAuthenticate", 2, body))
        began = time.perf_counter()
        assert say(own, plain(victim, PASSWORD))[0] == 0
        assert time.perf_counter() - began < LOGIN_SECONDS_MAX


# ── What a first message tells ───────────────────────────────────────────────────────────────
def shown_iterations(server: Server, user: str) -> int:
    with Wire(server) as wire:
        begin(wire, SHA_256)
        code, first = say(wire, scram_first(user, "12345678"))
        assert code == 0
        return int(fields_of(first)["i"])


def test_made_up_users_have_the_iterations_of_existing_ones(
    locked: Server, operator: Operator
) -> None:
    """As often as existing users of the tenant have them, and the same for a name each time."""
    tenant = operator.tenant()
    existing = {f"u{number}": (4_096 if number % 4 else 16_384) for number in range(20)}
    for name, iterations in existing.items():
        operator.ask("POST", "users", {"name": name, "tenant": tenant})
        path = f"users/{name}/password?tenant={tenant}"
        assert put_password(operator, path, iterations) == 200
    for name, iterations in existing.items():
        assert shown_iterations(locked, f"{tenant}/{name}") == iterations
    made_up = [f"{tenant}/made-up-{number}" for number in range(300)]
    found = {name: shown_iterations(locked, name) for name in made_up}
    counts = Counter(found.values())
    assert set(counts) == {4_096, 16_384}
    # One in four; the seed differs between servers, and 12 % are five standard deviations.
    assert 0.13 < counts[16_384] / len(made_up) < 0.37, counts
    for name in made_up[:10]:
        assert shown_iterations(locked, name) == found[name]


async def first_of(house: House, name: str, mechanism: str = SHA_256) -> tuple[str, int]:
    """Salt and iterations that the server shows for a name."""
    client = Client(house)
    await client.shake(mechanism)
    first = await client.token(scram_first(name, "12345678"))
    fields = fields_of(first.auth_bytes)
    return fields["s"], int(fields["i"])


async def test_two_spellings_of_a_made_up_user_look_like_those_of_an_existing_one(
    house: House,
) -> None:
    for name in ("ann", "nobody"):
        assert await first_of(house, name) == await first_of(house, f"{OWN}/{name}")


async def test_a_tenant_that_does_not_exist_looks_like_one_that_does(house: House) -> None:
    """Ann and bob have 4,096 iterations, so everybody has; without passwords, the default."""
    await house.user("bob", allow("*"), account=OTHER)
    for name in ("nobody", f"{OTHER}/nobody", "333333333333/nobody"):
        assert (await first_of(house, name))[1] == 4_096
    for account, name in ((OWN, "ann"), (OTHER, "bob")):
        await house.identities.delete_user(account, name)
    assert (await first_of(house, "ann"))[1] == scram.ITERATIONS_DEFAULT


async def test_a_larger_count_that_is_stored_is_not_shown_for_made_up_users(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise anybody could make the server compute it, by a wrong login as anybody."""
    await house.user("bob", allow("*"), account=OTHER, password=None)
    await put_older_password(house, monkeypatch, 20_000)
    assert (await first_of(house, f"{OTHER}/bob", SHA_512))[1] == 20_000
    for number in range(50):
        assert (await first_of(house, f"{OTHER}/nobody-{number}", SHA_512))[1] == 4_096


async def test_an_access_key_logs_in_while_the_counts_in_use_change(house: House) -> None:
    """A key's iterations are made up like those of unknown names: what the client was told
    counts."""
    key, secret = await house.key("ann")
    client = Client(house)
    await client.shake(SHA_256)
    other = ScramClient([SHA_256], key.key_id, secret)
    first = await client.token(other.get_client_first().encode())
    assert fields_of(first.auth_bytes)["i"] == "4096"
    salt = os.urandom(16)
    salted = scram.salted_password(SHA_256, b"x", salt=salt, iterations=8_000)
    await house.identities.put_scram(
        scram.credential_of(OWN, "ann", SHA_256, salted=salted, salt=salt, iterations=8_000)
    )
    assert (await first_of(house, key.key_id))[1] == 8_000
    other.set_server_first(first.auth_bytes.decode())
    last = await client.token(other.get_client_final().encode())
    assert last.error_code == 0
