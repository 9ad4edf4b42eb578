"""The client's half of SCRAM: the published example, the server's half, another implementation's
server, and servers that are not what they say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramMechanism  # type: ignore[import-untyped]

from penstock.wire.kafka.scram import (
    CLIENT_ITERATIONS_MAX,
    DIGESTS,
    SHA_256,
    SHA_512,
    ScramClient,
    ScramExchange,
    ScramRefused,
    credential_of,
    read_client_first,
    salted_password,
)

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)


def client(password: str = "pencil", mechanism: str = SHA_256, user: str = "user") -> ScramClient:
    return ScramClient(mechanism, user, password, nonce=NONCE)


def test_the_example_of_rfc_7677() -> None:
    made = client()
    assert made.first == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert made.final(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    made.verify(SERVER_FINAL)


@settings(max_examples=25, deadline=None)
@given(
    user=TEXT,
    password=TEXT,
    mechanism=st.sampled_from(sorted(DIGESTS)),
    salt=st.binary(min_size=1, max_size=40),
    entropy=st.binary(min_size=24, max_size=24),
)
def test_it_gets_along_with_the_server_half(
    user: str, password: str, mechanism: str, salt: bytes, entropy: bytes
) -> None:
    salted = salted_password(mechanism, password.encode(), salt=salt, iterations=4_096)
    kept = credential_of("1", user, mechanism, salted=salted, salt=salt, iterations=4_096)
    made = client(password, mechanism, user)
    first = read_client_first(made.first)
    assert first.user == user
    exchange = ScramExchange(mechanism, first, salt=salt, iterations=4_096, entropy=entropy)
    made.verify(exchange.finish(made.final(exchange.server_first), kept))


@settings(max_examples=10, deadline=None)
@given(mechanism=st.sampled_from(sorted(DIGESTS)), entropy=st.binary(min_size=24, max_size=24))
def test_a_wrong_password_is_refused_by_the_server_half(mechanism: str, entropy: bytes) -> None:
    salted = salted_password(mechanism, b"pencil", salt=b"salt", iterations=4_096)
    kept = credential_of("1", "user", mechanism, salted=salted, salt=b"salt", iterations=4_096)
    made = client("pencils", mechanism)
    first = read_client_first(made.first)
    exchange = ScramExchange(mechanism, first, salt=b"salt", iterations=4_096, entropy=entropy)
    with pytest.raises(ScramRefused):
        exchange.finish(made.final(exchange.server_first), kept)


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_another_implementation_lets_it_in(mechanism: str) -> None:
    theirs = ScramMechanism(mechanism)
    kept = theirs.make_auth_info("pencil", 4_096)
    server = theirs.make_server(lambda _user: kept)
    made = client("pencil", mechanism)
    server.set_client_first(made.first.decode())
    server.set_client_final(made.final(server.get_server_first().encode()).decode())
    made.verify(server.get_server_final().encode())


def test_a_server_that_does_not_know_the_password_is_not_believed() -> None:
    made = client("another")
    made.final(SERVER_FIRST)
    with pytest.raises(ScramRefused, match="has not proved that it knows the password"):
        made.verify(SERVER_FINAL)


def test_a_signature_before_any_proof_is_not_believed() -> None:
    with pytest.raises(ScramRefused, match="no signature"):
        client().verify(SERVER_FINAL)


def test_a_refusal_in_the_last_message_is_told() -> None:
    made = client()
    made.final(SERVER_FIRST)
    with pytest.raises(ScramRefused, match="invalid-proof"):
        made.verify(b"e=invalid-proof")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"r=other,s=c2FsdA==,i=4096", "does not extend"),
        (f"r={NONCE},s=c2FsdA==,i=4096".encode(), "does not extend"),
        (f"r={NONCE}x,s=c2FsdA==,i=4095".encode(), "4095 iterations"),
        (f"r={NONCE}x,s=c2FsdA==,i={CLIENT_ITERATIONS_MAX + 1}".encode(), "iterations"),
        (f"r={NONCE}x,s=c2FsdA==,i={'9' * 5_000}".encode(), "not a number"),
        (f"r={NONCE}x,s=c2FsdA==,i=many".encode(), "not a number"),
        (f"r={NONCE}x,s=,i=4096".encode(), "size"),
        (f"r={NONCE}x,s=no*base64,i=4096".encode(), "base64"),
        (f"r={NONCE}x,i=4096".encode(), "lacks"),
        (b"m=more,r=x,s=c2FsdA==,i=4096", "extension"),
        (b"\xff", "UTF-8"),
        (b"", "lacks"),
    ],
)
def test_what_a_server_may_not_ask_for(message: bytes, why: str) -> None:
    with pytest.raises(ScramRefused, match=why):
        client().final(message)


@settings(max_examples=100, deadline=None)
@given(message=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_nothing_but_a_refusal_comes_of_noise(message: bytes) -> None:
    with pytest.raises(ScramRefused):
        client().final(message)
