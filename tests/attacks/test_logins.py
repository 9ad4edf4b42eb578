"""Knocking at the Kafka listener of a server that asks everybody who they are: without a log-in,
with a wrong one, with somebody else's, with too much to say before it. What SCRAM itself must
refuse is in tests/unit/frontend_kafka_access."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import struct
import time

import pytest
from tests.attacks.frames import Wire, framed
from tests.attacks.kit import EVERYTHING, REVOKED_SECONDS_MAX, ROOT, Operator
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.wire.kafka.apis import APIS
from penstock.wire.kafka.faults import ErrorCode

KIB = 1_024
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED
BEFORE_LOGIN = {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}


def begin(wire: Wire, mechanism: str) -> None:
    assert wire.ask("SaslHandshake", 1, mechanism=mechanism).error_code == 0


def say(wire: Wire, token: bytes) -> tuple[int, bytes]:
    reply = wire.ask("SaslAuthenticate", 2, auth_bytes=token)
    assert reply is not None, "hung up on instead of answered"
    return reply.error_code, bytes(reply.auth_bytes)


def plain(user: str, password: str, *, authorize: str = "") -> bytes:
    return f"{authorize}\0{user}\0{password}".encode()


def logged_in(server: Server) -> Wire:
    wire = Wire(server)
    begin(wire, "PLAIN")
    assert say(wire, plain(str(ROOT.access_key), str(ROOT.secret_key)))[0] == 0
    return wire


# ── Without a log-in ─────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("name", [api.name for api in APIS.values()])
def test_a_stranger_gets_nothing_but_what_it_takes_to_log_in(locked: Server, name: str) -> None:
    (api,) = (api for api in APIS.values() if api.name == name)
    with Wire(locked) as wire:
        wire.send(wire.frame(name, api.version_max, bytes(64)))
        if name not in BEFORE_LOGIN:
            assert wire.is_closed()


def test_a_handshake_alone_is_no_log_in(locked: Server) -> None:
    with Wire(locked) as wire:
        begin(wire, "PLAIN")
        assert wire.ask("Metadata", 12) is None
    with Wire(locked) as wire:
        assert say(wire, plain("root", "x"))[0] == ErrorCode.ILLEGAL_SASL_STATE


def test_frames_of_a_stranger_are_small(locked: Server) -> None:
    """Before anybody has said who they are: at most 64 KiB. The length alone decides."""
    with Wire(locked) as wire:
        wire.send(struct.pack(">i", 64 * KIB + 1) + bytes(100))
        assert wire.is_closed()
    with Wire(locked) as wire:
        wire.send(framed(struct.pack(">hhih", 18, 0, 7, -1) + bytes(60 * KIB)))
        assert wire.read_frame() is not None, "a frame within the bound"
    with logged_in(locked) as wire:
        wire.send(struct.pack(">i", 64 * KIB + 1) + bytes(100))
        wire.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            wire.socket.recv(1)


# ── With a wrong one ─────────────────────────────────────────────────────────────────────────
WRONG = {
    "wrong-secret": plain(str(ROOT.access_key), "guessed"),
    "no-secret": plain(str(ROOT.access_key), ""),
    "nobody": plain("nobody", "guessed"),
    "user-without-password": plain("root", "root"),
    "account-for-a-user": plain("000000000000", "x"),
    "on-behalf-of-another": plain(
        str(ROOT.access_key), str(ROOT.secret_key), authorize="somebody-else"
    ),
    "too-few-parts": b"root\0root",
    "too-many-parts": b"\0a\0b\0c",
    "empty": b"",
    "not-text": b"\0\xff\xfe\0\xff",
    "longer-than-any": plain("a" * 5_000, "b" * 5_000),
}


@pytest.mark.parametrize("attack", WRONG)
def test_a_wrong_log_in_is_refused_and_ends_the_connection(locked: Server, attack: str) -> None:
    with Wire(locked) as wire:
        begin(wire, "PLAIN")
        assert say(wire, WRONG[attack])[0] == FAILED
        assert wire.is_closed(), "a second try on the same connection"


def test_a_key_or_a_user_that_is_not_there_takes_as_long_as_a_wrong_secret(locked: Server) -> None:
    took: dict[str, list[float]] = {"wrong-secret": [], "nobody": []}
    for _ in range(6):
        for attack, times in took.items():
            with Wire(locked) as wire:
                begin(wire, "PLAIN")
                began = time.perf_counter()
                assert say(wire, WRONG[attack])[0] == FAILED
                times.append(time.perf_counter() - began)
    wrong, nobody = (min(times) for times in took.values())
    assert abs(wrong - nobody) < 0.02, f"{wrong:.3f} s and {nobody:.3f} s"


def scram_first(user: str, nonce: str) -> bytes:
    return f"n,,n={user},r={nonce}".encode()


def fields_of(message: bytes) -> dict[str, str]:
    return {part[0]: part[2:] for part in message.decode().split(",")}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_one_who_is_not_there_looks_like_one_who_is(locked: Server, mechanism: str) -> None:
    """The same salt whenever it is asked for, as many iterations as anybody, and no way in."""
    salts = set()
    for _ in range(2):
        with Wire(locked) as wire:
            begin(wire, mechanism)
            nonce = base64.b64encode(os.urandom(18)).decode()
            code, first = say(wire, scram_first("nobody-at-all", nonce))
            fields = fields_of(first)
            assert code == 0
            assert fields["r"].startswith(nonce)
            assert int(fields["i"]) >= 4_096
            salts.add(fields["s"])
            last = f"c=biws,r={fields['r']},p={base64.b64encode(bytes(32)).decode()}"
            assert say(wire, last.encode())[0] == FAILED
            assert wire.is_closed()
    assert len(salts) == 1


def test_a_proof_for_another_nonce_is_refused(locked: Server, operator: Operator) -> None:
    """The one in the last message must be the server's of this very exchange: a proof that was
    right for another is no proof."""
    name, _ = operator.user(EVERYTHING)
    salt, iterations = os.urandom(16), 4_096
    salted = hashlib.pbkdf2_hmac("sha256", b"open sesame", salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored = hashlib.sha256(client_key).digest()
    set_password(operator, name, salt, iterations, stored, salted)

    def answer_to(*, is_own_nonce: bool) -> int:
        nonce = base64.b64encode(os.urandom(18)).decode()
        with Wire(locked) as wire:
            begin(wire, "SCRAM-SHA-256")
            code, first = say(wire, scram_first(name, nonce))
            assert code == 0
            bare = f"c=biws,r={nonce if is_own_nonce else fields_of(first)['r']}"
            message = f"n={name},r={nonce},{first.decode()},{bare}".encode()
            signature = hmac.digest(stored, message, "sha256")
            proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
            return say(wire, f"{bare},p={base64.b64encode(proof).decode()}".encode())[0]

    eventually(
        lambda: answer_to(is_own_nonce=False) == 0, seconds=REVOKED_SECONDS_MAX, what="let in"
    )
    assert answer_to(is_own_nonce=True) == FAILED


def set_password(
    operator: Operator, name: str, salt: bytes, iterations: int, stored: bytes, salted: bytes
) -> None:
    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    credential = {
        "mechanism": "SCRAM-SHA-256",
        "salt": text(salt),
        "iterations": iterations,
        "stored_key": text(stored),
        "server_key": text(hmac.digest(salted, b"Server Key", "sha256")),
    }
    operator.ask("PUT", f"users/{name}/password", {"credentials": [credential]})
