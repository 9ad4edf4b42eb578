"""The client's side of SCRAM (RFC 5802, RFC 7677), the counterpart of ``scram``. Pure: the nonce is
an argument.

The password never leaves the client. The client trusts a server only after its last message proves
that it has the stored credential of that password. Iterations are bounded: with too few, a false
server could guess the password from the proof, and too many would keep the client busy."""

import base64
import hashlib
import hmac
from typing import Final

from penstock.model.limits import SCRAM_ITERATIONS_MIN
from penstock.wire.kafka.scram import (
    DIGESTS,
    NONCE_CHARS_MAX,
    NONCE_CHARS_MIN,
    ScramRefused,
    salted_password,
)

ITERATIONS_MAX: Final = 1_000_000  # half a second of work; older servers stored up to as many
SALT_BYTES_MAX: Final = 1_024

_GS2_HEADER: Final = "n,,"  # no channel binding, no other user to act for
_BINDING: Final = base64.b64encode(_GS2_HEADER.encode()).decode("ascii")


class ScramClient:
    """One attempt: ``first``, then ``final`` with the server's reply, then ``verify`` with its last
    message. Each raises ScramRefused if the server cannot be trusted."""

    __slots__ = ("_bare", "_mechanism", "_nonce", "_password", "_verifier")

    def __init__(self, mechanism: str, user: str, password: str, *, nonce: str) -> None:
        """``nonce``: new for each attempt, printable and without commas."""
        assert mechanism in DIGESTS
        assert NONCE_CHARS_MIN <= len(nonce) <= NONCE_CHARS_MAX
        assert "," not in nonce
        self._mechanism = mechanism
        self._nonce = nonce
        # As in Kafka's clients: UTF-8 unchanged, without the normal forms of SASLprep.
        self._password = password.encode()
        written = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={written},r={nonce}"
        self._verifier: bytes | None = None

    @property
    def first(self) -> bytes:
        return f"{_GS2_HEADER}{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the proof. Slow on purpose (milliseconds)."""
        text = _text(server_first)
        nonce, salt, iterations = _read_server_first(text)
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramRefused("the server's nonce does not extend the client's")
        digest = DIGESTS[self._mechanism]
        salted = salted_password(self._mechanism, self._password, salt=salt, iterations=iterations)
        client_key = hmac.digest(salted, b"Client Key", digest)
        stored_key = hashlib.new(digest, client_key).digest()
        without_proof = f"c={_BINDING},r={nonce}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        signature = hmac.digest(stored_key, signed, digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", digest)
        self._verifier = hmac.digest(server_key, signed, digest)
        return f"{without_proof},p={base64.b64encode(proof).decode('ascii')}".encode()

    def verify(self, server_final: bytes) -> None:
        """Verify that the server knows the password as well."""
        text = _text(server_final)
        if text.startswith("e="):
            raise ScramRefused(f"the server rejected the proof: {text[2:].partition(',')[0]}")
        attribute = text.partition(",")[0]
        if not attribute.startswith("v=") or self._verifier is None:
            raise ScramRefused("the server's last message has no signature")
        if not hmac.compare_digest(_base64(attribute[2:]), self._verifier):
            raise ScramRefused("the server does not know the password")


def _read_server_first(text: str) -> tuple[str, bytes, int]:
    """Return nonce, salt and iterations."""
    attributes = text.split(",")
    if attributes[0].startswith("m="):
        raise ScramRefused("the server requires an extension, which is not supported")
    if len(attributes) < 3 or [part[:2] for part in attributes[:3]] != ["r=", "s=", "i="]:
        raise ScramRefused("the server's first message lacks nonce, salt or iterations")
    nonce, salt, count = attributes[0][2:], _base64(attributes[1][2:]), attributes[2][2:]
    if len(nonce) > 2 * NONCE_CHARS_MAX or not 0 < len(salt) <= SALT_BYTES_MAX:
        raise ScramRefused("the server's nonce or salt has an invalid size")
    if not count.isascii() or not count.isdigit() or len(count) > 10:
        raise ScramRefused("the server's iterations are not a number")
    iterations = int(count)
    if not SCRAM_ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ScramRefused(
            f"the server requests {iterations} iterations,"
            f" {SCRAM_ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed"
        )
    return nonce, salt, iterations


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramRefused("the server's message is not UTF-8") from None


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ScramRefused("a value of the server is not base64") from None
