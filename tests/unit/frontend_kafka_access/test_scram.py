"""SCRAM as another implementation speaks it, and every message it must not be taken in by."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramClient, ScramMechanism  # type: ignore[import-untyped]

from penstock.model.identity import ScramCredential
from penstock.model.limits import SCRAM_ITERATIONS_MIN
from penstock.wire.kafka import scram
from penstock.wire.kafka.scram import (
    DIGESTS,
    SHA_256,
    SHA_512,
    ScramExchange,
    ScramRefused,
    credential_of,
    invented,
    read_client_first,
    salted_password,
)

ENTROPY = bytes(range(24))
SEED = b"s" * 32
COUNTS = {4_096: 1}
BARE = "n=ann,r=12345678"
FIRST = f"n,,{BARE}".encode()
NAMES = st.text(
    st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=1, max_size=40
)


def made(
    mechanism: str = SHA_256, password: str = "pencil", iterations: int = 4_096
) -> ScramCredential:
    salt = b"0123456789ab"
    salted = salted_password(mechanism, password.encode(), salt=salt, iterations=iterations)
    return credential_of("1", "ann", mechanism, salted=salted, salt=salt, iterations=iterations)


def begun(credential: ScramCredential, first: bytes, entropy: bytes = ENTROPY) -> ScramExchange:
    return ScramExchange(
        credential.mechanism,
        read_client_first(first),
        salt=credential.salt,
        iterations=credential.iterations,
        entropy=entropy,
    )


def proven(
    credential: ScramCredential, name: str = "ann", password: str = "pencil"
) -> tuple[ScramExchange, str]:
    """An exchange that lacks nothing but its last message, and that message."""
    client = ScramClient([credential.mechanism], name, password)
    exchange = begun(credential, client.get_client_first().encode())
    client.set_server_first(exchange.server_first.decode())
    return exchange, client.get_client_final()


@settings(max_examples=20, deadline=None)
@given(name=NAMES, password=NAMES, mechanism=st.sampled_from(sorted(DIGESTS)))
def test_two_implementations_agree(name: str, password: str, mechanism: str) -> None:
    credential = made(mechanism, password)
    client = ScramClient([mechanism], name, password)
    exchange = begun(credential, client.get_client_first().encode())
    assert exchange.user == name
    client.set_server_first(exchange.server_first.decode())
    last = exchange.finish(client.get_client_final().encode(), credential)
    client.set_server_final(last.decode())  # checks that the server knows the password


def test_what_is_kept_is_what_the_other_implementation_would_keep() -> None:
    for mechanism in DIGESTS:
        ours = made(mechanism)
        theirs = ScramMechanism(mechanism).make_auth_info("pencil", 4_096, b"0123456789ab")
        assert (ours.salt, ours.stored_key, ours.server_key, ours.iterations) == theirs


def test_a_wrong_password_is_refused() -> None:
    credential = made()
    exchange, last = proven(credential, password="crayon")
    with pytest.raises(ScramRefused):
        exchange.finish(last.encode(), credential)


def signed_by_hand(exchange: ScramExchange, credential: ScramCredential, final: str) -> bytes:
    """A last message of one who knows the password and signs what the server would sign."""
    salted = salted_password(SHA_256, b"pencil", salt=credential.salt, iterations=4_096)
    key = hmac.digest(salted, b"Client Key", "sha256")
    signed = f"{BARE},{exchange.server_first.decode()},{final}".encode()
    signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
    proof = bytes(one ^ other for one, other in zip(key, signature, strict=True))
    return f"{final},p={base64.b64encode(proof).decode()}".encode()


def test_the_nonce_of_the_last_message_must_be_the_whole_one() -> None:
    """With a proof that fits, so that nothing else is wrong with it."""
    credential = made()
    nonce = begun(credential, FIRST).server_first.decode()[2:].split(",")[0]
    own = "12345678"
    for shown, is_right in (
        (nonce, True),
        (own + nonce, True),  # as older librdkafka has it
        (nonce + "x", False),
        (nonce[:-1], False),
        ("x" + nonce, False),
        ("87654321" + nonce, False),
        (own + own + nonce, False),
        (own, False),
        ("", False),
    ):
        exchange = begun(credential, FIRST)
        last = signed_by_hand(exchange, credential, f"c=biws,r={shown}")
        if is_right:
            assert exchange.finish(last, credential).startswith(b"v=")
        else:
            with pytest.raises(ScramRefused):
                exchange.finish(last, credential)


def test_a_proof_is_good_for_one_exchange_and_once() -> None:
    credential = made()
    exchange = begun(credential, FIRST)
    nonce = exchange.server_first.decode()[2:].split(",")[0]
    last = signed_by_hand(exchange, credential, f"c=biws,r={nonce}")
    assert exchange.finish(last, credential).startswith(b"v=")
    with pytest.raises(ScramRefused):
        exchange.finish(last, credential)
    replayed = begun(credential, FIRST, entropy=bytes(24))  # the same client, another time
    with pytest.raises(ScramRefused):
        replayed.finish(last, credential)


def test_one_who_does_not_exist_has_always_the_same_salt_and_no_password() -> None:
    one, two = (
        invented("", "nobody", SHA_512, seed=SEED, counts=COUNTS),
        invented("", "nobody", SHA_512, seed=SEED, counts=COUNTS),
    )
    assert one == two
    assert one.salt != invented("", "nobodY", SHA_512, seed=SEED, counts=COUNTS).salt
    assert one.salt != invented("", "nobody", SHA_512, seed=b"t" * 32, counts=COUNTS).salt
    exchange, last = proven(one, "nobody")
    with pytest.raises(ScramRefused):
        exchange.finish(last.encode(), one)


def test_made_up_users_have_each_count_as_often_as_existing_ones() -> None:
    counts = {4_096: 30, 8_192: 50, 16_384: 20}
    names = [f"name-{number}" for number in range(4_000)]

    def drawn(of: dict[int, int]) -> list[int]:
        return [invented("", each, SHA_256, seed=SEED, counts=of).iterations for each in names]

    found = drawn(counts)
    for iterations, weight in counts.items():
        assert abs(found.count(iterations) / len(names) - weight / 100) < 0.03
    # One user more changes what few names show: a change would tell that a name is made up.
    after = drawn({**counts, 8_192: 51})
    assert sum(one != other for one, other in zip(found, after, strict=True)) < len(names) / 50
    assert set(drawn({12_345: 1})) == {12_345}
    assert set(drawn({})) == {scram.ITERATIONS_DEFAULT}


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=ann",
        b"n,,r=12345678,n=ann",
        b"p=tls-unique,,n=ann,r=12345678",  # wants to be bound to the channel
        b"n,a=root,n=ann,r=12345678",  # acts for somebody else
        b"n,root,n=ann,r=12345678",
        b"n,,m=x,n=ann,r=12345678",  # an extension that must be understood
        b"n,,n=,r=12345678",
        b"n,,n=a=n,r=12345678",
        b"n,,n=ann,r=1234567",
        b"n,,n=ann,r=" + b"1" * 513,
        b"n,,n=ann,r=1234\x005678",
        b"n,,n=" + b"a" * 257 + b",r=12345678",
        b"\xff\xfe",
    ],
)
def test_a_first_message_that_is_none_is_refused(first: bytes) -> None:
    with pytest.raises(ScramRefused):
        read_client_first(first)


@pytest.mark.parametrize(
    "last",
    [
        b"",
        b"c=biws",
        b"c=biws,r=x",
        b"p=x,c=biws,r=x",
        b"c=biws,r=x,p=",
        b"c=biws,r=x,p=!!!",
        b"c=!,r=x,p=AAAA",
        b"r=x,c=biws,p=AAAA",
        b"\xff,p=AAAA",
    ],
)
def test_a_last_message_that_is_none_is_refused(last: bytes) -> None:
    credential = made()
    exchange = begun(credential, FIRST)
    with pytest.raises(ScramRefused):
        exchange.finish(last, credential)


def test_another_channel_binding_than_at_first_is_refused() -> None:
    credential = made()
    exchange = begun(credential, FIRST)
    nonce = exchange.server_first.decode()[2:].split(",")[0]
    last = signed_by_hand(exchange, credential, f"c=eSws,r={nonce}")  # "y,,", and signed as that
    with pytest.raises(ScramRefused):
        exchange.finish(last, credential)


@settings(max_examples=200, deadline=None)
@given(message=st.binary(max_size=60), is_first=st.booleans())
def test_no_bytes_do_more_than_be_refused(message: bytes, is_first: bool) -> None:
    credential = made_once()
    try:
        if is_first:
            read_client_first(message)
        else:
            begun(credential, FIRST).finish(message, credential)
            raise AssertionError("nobody guesses a proof")
    except ScramRefused:
        pass


_kept: list[ScramCredential] = []


def made_once() -> ScramCredential:
    if not _kept:
        _kept.append(made())
    return _kept[0]


def test_few_iterations_cannot_be_shown() -> None:
    credential = made(iterations=1_000)
    with pytest.raises(AssertionError):
        begun(credential, FIRST)
    assert scram.ITERATIONS_DEFAULT >= SCRAM_ITERATIONS_MIN == 4_096
