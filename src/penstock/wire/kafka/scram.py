"""SCRAM (RFC 5802, RFC 7677): the messages of both sides, and the stored form of a password.

    client                               server
    n,,n=user,r=C                ──►     is there such a user?
                                 ◄──     r=CS,s=salt,i=iterations
    c=…,r=CS,p=proof             ──►     the same nonce? does the proof fit the stored key?
                                 ◄──     v=signature, which proves the server to the client

No reply reveals why a proof was refused: wrong password, wrong nonce and unknown user look the
same. Channel binding is not offered, so a client that requires it is refused.

A client trusts a server only after the server's last message has proved that the server knows the
stored credential. A client also limits the iterations: with too few, a fake server could guess the
password from the proof, and too many would keep the client busy."""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from penstock.model.identity import ScramCredential
from penstock.model.limits import SCRAM_ITERATIONS_MIN

SHA_256: Final = "SCRAM-SHA-256"
SHA_512: Final = "SCRAM-SHA-512"
DIGESTS: Final[Mapping[str, str]] = MappingProxyType({SHA_256: "sha256", SHA_512: "sha512"})
ITERATIONS_DEFAULT: Final = 8_192
SALT_BYTES: Final = 16
NONCE_BYTES: Final = 24  # the server's part, before base64
NONCE_CHARS_MIN: Final = 8  # the client's part; a shorter one could be guessed
NONCE_CHARS_MAX: Final = 512
NAME_CHARS_MAX: Final = 256
CLIENT_ITERATIONS_MAX: Final = 1_000_000  # half a second; older servers may have stored so many
SALT_BYTES_MAX: Final = 1_024

_NO_KEY: Final = b"\0"
_GS2_HEADER: Final = "n,,"  # no channel binding, no authorization as another user


class ScramRefused(Exception):
    """The login failed. The server logs the text, but does not send it to the client."""


class ClientFirst(msgspec.Struct, frozen=True, gc=False):
    gs2_header: str
    bare: str  # signed by both sides
    user: str  # or the id of a delegation token
    nonce: str
    is_token: bool = False


# ── Stored credentials ───────────────────────────────────────────────────────────────────────


def salted_password(mechanism: str, password: bytes, *, salt: bytes, iterations: int) -> bytes:
    """Return the salted password. Call this in a thread, because it takes milliseconds."""
    return hashlib.pbkdf2_hmac(DIGESTS[mechanism], password, salt, iterations)


def credential_of(
    account: str, user: str, mechanism: str, *, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    _, stored_key, server_key = _keys(mechanism, salted)
    return ScramCredential(account, user, mechanism, iterations, salt, stored_key, server_key)


def _keys(mechanism: str, salted: bytes) -> tuple[bytes, bytes, bytes]:
    digest = DIGESTS[mechanism]
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    return client_key, stored_key, hmac.digest(salted, b"Server Key", digest)


def is_password(credential: ScramCredential, salted: bytes) -> bool:
    return hmac.compare_digest(_keys(credential.mechanism, salted)[1], credential.stored_key)


def invented(
    account: str, user: str, mechanism: str, *, seed: bytes, counts: Mapping[int, int]
) -> ScramCredential:
    """Return a credential for a user that does not exist, so that a client cannot find out which
    users exist. A user's salt is always the same, and the keys match no password. ``counts`` has
    the number of existing users for each iteration count; invented users are distributed alike."""
    place = f"{mechanism}/{account}/{user}".encode("utf-8", "surrogatepass")
    drawn, salt, stored_key, server_key = (
        hmac.digest(seed, what + place, DIGESTS[mechanism])
        for what in (b"iterations/", b"salt/", b"stored/", b"server/")
    )
    iterations, salt = _chosen(counts, drawn), salt[:SALT_BYTES]
    return ScramCredential(account, user, mechanism, iterations, salt, stored_key, server_key)


def _chosen(counts: Mapping[int, int], drawn: bytes) -> int:
    at = scaled(drawn, sum(counts.values()))
    for iterations in sorted(counts):
        at -= counts[iterations]
        if at < 0:
            return iterations
    return ITERATIONS_DEFAULT  # no user has a password


def scaled(drawn: bytes, size: int) -> int:
    """Return the random number in ``drawn``, scaled to the range from 0 to ``size`` - 1."""
    return int.from_bytes(drawn, "big") * size >> 8 * len(drawn)


# ── The server ───────────────────────────────────────────────────────────────────────────────


def read_client_first(message: bytes) -> ClientFirst:
    text = _text(message)
    binding, _, rest = text.partition(",")
    authorization, comma, bare = rest.partition(",")
    if not comma or binding not in ("n", "y"):
        raise ScramRefused("channel binding is not supported")
    attributes = bare.split(",")
    if len(attributes) < 2 or not attributes[0].startswith("n=") or attributes[1][:2] != "r=":
        raise ScramRefused("the first message has no user or no nonce")
    user = _name(attributes[0][2:])
    if authorization and (authorization[:2] != "a=" or _name(authorization[2:]) != user):
        raise ScramRefused("acting as another user is not allowed")
    # Extensions should be ignored, but one of Kafka's changes the meaning of the user.
    is_token = any(extension.lower() == "tokenauth=true" for extension in attributes[2:])
    nonce = attributes[1][2:]
    if not NONCE_CHARS_MIN <= len(nonce) <= NONCE_CHARS_MAX or not all(
        "!" <= char <= "~" for char in nonce
    ):
        raise ScramRefused("the nonce is too short, too long or not printable")
    return ClientFirst(f"{binding},{authorization},", bare, user, nonce, is_token)


class ScramExchange:
    """One login attempt at the server. The client may send only one proof for a nonce."""

    def __init__(
        self,
        mechanism: str,
        client_first: ClientFirst,
        *,
        salt: bytes,
        iterations: int,
        entropy: bytes,
    ) -> None:
        """Begin a login. ``entropy`` is the server's half of the nonce, new for each login."""
        assert len(entropy) >= NONCE_BYTES, "the nonce is too short"
        assert iterations >= SCRAM_ITERATIONS_MIN
        self.mechanism = mechanism
        self.iterations = iterations
        self._client_first = client_first
        self._nonce = client_first.nonce + base64.b64encode(entropy).decode("ascii")
        shown = base64.b64encode(salt).decode("ascii")
        self._server_first = f"r={self._nonce},s={shown},i={iterations}"
        self.server_first = self._server_first.encode()
        self.user, self.is_token = client_first.user, client_first.is_token
        self._is_over = False

    def finish(self, message: bytes, credential: ScramCredential) -> bytes:
        """Return the server's last message. Raises ScramRefused if the client's proof is wrong."""
        if self._is_over:
            raise ScramRefused("the login attempt is already over")
        self._is_over = True
        binding, nonce, proof, without_proof = _read_client_final(message)
        digest = DIGESTS[self.mechanism]
        signed = f"{self._client_first.bare},{self._server_first},{without_proof}".encode()
        signature = hmac.digest(credential.stored_key, signed, digest)
        is_proof = len(proof) == len(signature)
        client_key = _xor(proof, signature) if is_proof else _NO_KEY
        found = hashlib.new(digest, client_key).digest()
        # Everything is checked before the result is revealed.
        is_known = hmac.compare_digest(found, credential.stored_key)
        is_bound = hmac.compare_digest(binding, self._client_first.gs2_header.encode())
        is_fresh = self._is_nonce(nonce)
        if not (is_proof and is_known and is_bound and is_fresh):
            raise ScramRefused("the proof does not match")
        verifier = hmac.digest(credential.server_key, signed, digest)
        return b"v=" + base64.b64encode(verifier)

    def _is_nonce(self, shown: str) -> bool:
        """Return whether the nonce is right. librdkafka < 2.6.1 sends the client's half twice."""
        ours, doubled = self._nonce, self._client_first.nonce + self._nonce
        is_ours = hmac.compare_digest(shown.encode(), ours.encode())
        return is_ours or hmac.compare_digest(shown.encode(), doubled.encode())


def _read_client_final(message: bytes) -> tuple[bytes, str, bytes, str]:
    text = _text(message)
    without_proof, mark, proof = text.rpartition(",p=")
    attributes = without_proof.split(",")
    if not mark or len(attributes) < 2:
        raise ScramRefused("the last message has no proof")
    if attributes[0][:2] != "c=" or attributes[1][:2] != "r=":
        raise ScramRefused("the last message has no channel binding or no nonce")
    return _base64(attributes[0][2:]), attributes[1][2:], _base64(proof), without_proof


# ── The client ───────────────────────────────────────────────────────────────────────────────


class ScramClient:
    def __init__(self, mechanism: str, user: str, password: str, *, nonce: str) -> None:
        """Begin a login. ``nonce`` must be new for each login, printable and without commas."""
        assert mechanism in DIGESTS
        assert NONCE_CHARS_MIN <= len(nonce) <= NONCE_CHARS_MAX
        assert "," not in nonce
        self._mechanism = mechanism
        self._nonce = nonce
        # Like Kafka's clients, without the Unicode normalization of SASLprep.
        self._password = password.encode()
        written = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={written},r={nonce}"
        self.first = f"{_GS2_HEADER}{self._bare}".encode()
        self._verifier: bytes | None = None

    def final(self, server_first: bytes) -> bytes:
        text = _text(server_first, "the server's message")
        nonce, salt, iterations = _read_server_first(text)
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramRefused("the server's nonce does not extend the client's nonce")
        digest = DIGESTS[self._mechanism]
        salted = salted_password(self._mechanism, self._password, salt=salt, iterations=iterations)
        client_key, stored_key, server_key = _keys(self._mechanism, salted)
        binding = base64.b64encode(_GS2_HEADER.encode()).decode("ascii")
        without_proof = f"c={binding},r={nonce}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        proof = _xor(client_key, hmac.digest(stored_key, signed, digest))
        self._verifier = hmac.digest(server_key, signed, digest)
        return f"{without_proof},p={base64.b64encode(proof).decode('ascii')}".encode()

    def verify(self, server_final: bytes) -> None:
        text = _text(server_final, "the server's message")
        if text.startswith("e="):
            raise ScramRefused(f"the server rejected the proof: {text[2:].partition(',')[0]}")
        attribute = text.partition(",")[0]
        if not attribute.startswith("v=") or self._verifier is None:
            raise ScramRefused("the server's last message has no signature")
        if not hmac.compare_digest(_base64(attribute[2:], "a value of the server"), self._verifier):
            raise ScramRefused("the server has not proved that it knows the password")


def _read_server_first(text: str) -> tuple[str, bytes, int]:
    attributes = text.split(",")
    if attributes[0].startswith("m="):
        raise ScramRefused("the server requires an extension, which is not supported")
    if len(attributes) < 3 or [part[:2] for part in attributes[:3]] != ["r=", "s=", "i="]:
        raise ScramRefused("the server's first message lacks nonce, salt or iterations")
    nonce, salt_text, count = (part[2:] for part in attributes[:3])
    salt = _base64(salt_text, "a value of the server")
    if len(nonce) > 2 * NONCE_CHARS_MAX or not 0 < len(salt) <= SALT_BYTES_MAX:
        raise ScramRefused("the server's nonce or salt has an invalid size")
    if not count.isascii() or not count.isdigit() or len(count) > 10:
        raise ScramRefused("the server's iteration count is not a number")
    iterations = int(count)
    if not SCRAM_ITERATIONS_MIN <= iterations <= CLIENT_ITERATIONS_MAX:
        raise ScramRefused(
            f"the server requests {iterations} iterations;"
            f" {SCRAM_ITERATIONS_MIN} to {CLIENT_ITERATIONS_MAX} are allowed"
        )
    return nonce, salt, iterations


# ── Parsing ──────────────────────────────────────────────────────────────────────────────────


def _text(message: bytes, what: str = "the message") -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramRefused(f"{what} is not UTF-8") from None


def _name(text: str) -> str:
    """Decode a user name, in which ``=2C`` is a comma and ``=3D`` an equals sign."""
    name = text.replace("=2C", ",").replace("=3D", "=")
    if text.count("=") != text.count("=2C") + text.count("=3D"):
        raise ScramRefused("the user name is not encoded correctly")
    if not 0 < len(name) <= NAME_CHARS_MAX or "\0" in name:
        raise ScramRefused("the user name is empty or too long")
    return name


def _base64(text: str, what: str = "a value") -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ScramRefused(f"{what} is not base64") from None


def _xor(left: bytes, right: bytes) -> bytes:
    size = len(left)
    return (int.from_bytes(left, "big") ^ int.from_bytes(right, "big")).to_bytes(size, "big")
