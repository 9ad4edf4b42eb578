"""Authentication of the admin API. A caller uses the operator's token, the token of a log-in, or an
access key with its secret (HTTP Basic, for programs such as Prometheus). If authentication is off
and no operator's token is set, every caller is an operator.

A log-in exchanges the id and secret of an access key for a token that expires after twelve hours.
The token is signed with a key derived from the secret, so every node can verify it without stored
state, and it becomes invalid when the access key is disabled. No reply asks for HTTP Basic, because
a browser would then store the key and send it even with requests made by other web sites."""

import base64
import binascii
import hashlib
import hmac

import msgspec

from penstock.metadata.security.identities import StoredIdentities
from penstock.model.errors import PenstockError
from penstock.model.identity import AccessKey, Caller, KeyStatus

TOKEN_MS = 12 * 3_600 * 1_000
TOKEN_CHARS_MAX = 4_096
OPERATOR = "operator"  # user name of the holder of the configured token, in logs

_SCHEME = "psat1"
_PURPOSE = b"penstock admin token 1"
_UNKNOWN = b"\0" * 40  # the secret of unknown keys, so that rejecting them takes the same time


class Unauthenticated(PenstockError):
    """Raised if the credentials are missing, wrong or no longer valid."""


class _Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key_id: str
    account: str
    user: str
    expires_at_ms: int


class Credentials(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key_id: str
    secret: str

    def __repr__(self) -> str:
        return f"Credentials({self.key_id!r})"


class Session(msgspec.Struct, frozen=True):
    token: str
    expires_at_ms: int
    account: str
    user: str
    is_operator: bool


class Gate:
    def __init__(
        self, *, token: str, identities: StoredIdentities | None, account: str, is_required: bool
    ) -> None:
        self._token = token.encode()
        self._identities = identities
        self.is_open = not token and not is_required
        self._operator = Caller(account, OPERATOR, is_operator=True, is_trusted=True)

    def caller(self, authorization: str, *, now_ms: int) -> Caller:
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer":
            # In constant time, so that the token cannot be guessed byte by byte.
            if self._token and hmac.compare_digest(given.encode(errors="replace"), self._token):
                return self._operator
            if given.startswith(f"{_SCHEME}."):
                return self._by_session(given, now_ms=now_ms)
        if self.is_open:
            return self._operator  # ignores HTTP Basic, which may be for a proxy before this node
        if scheme.lower() == "basic":
            return self._by_secret(_basic(given), now_ms=now_ms)[1]
        if scheme:
            raise Unauthenticated("The bearer token is not valid.")
        text = "send the operator's token (admin.token) or a log-in token as bearer token,"
        raise Unauthenticated(f"Authentication is required: {text} or an access key (HTTP Basic).")

    def log_in(self, given: Credentials, *, now_ms: int) -> Session:
        key, caller, secret = self._by_secret(given, now_ms=now_ms)
        claims = _Claims(key.key_id, key.account, key.user, now_ms + TOKEN_MS)
        body = _b64(msgspec.json.encode(claims))
        token = f"{_SCHEME}.{body}.{_b64(_mac(secret, body))}"
        return Session(token, claims.expires_at_ms, key.account, key.user, caller.is_operator)

    def _by_secret(self, given: Credentials, *, now_ms: int) -> tuple[AccessKey, Caller, bytes]:
        identities = self._identities
        key = None if identities is None else identities.key(given.key_id)
        secret = _UNKNOWN if key is None or identities is None else identities.secret(key)
        is_right = hmac.compare_digest(given.secret.encode(errors="replace"), secret)
        if key is None or identities is None or not is_right:
            raise Unauthenticated("The key id or the secret is wrong, or the key is disabled.")
        caller = self._by_key(key)
        identities.note_used(key, now_ms=now_ms)
        return key, caller, secret

    def _by_session(self, token: str, *, now_ms: int) -> Caller:
        refusal = Unauthenticated("The token is invalid or has expired: log in again.")
        parts = token.split(".")
        if len(parts) != 3 or len(token) > TOKEN_CHARS_MAX or self._identities is None:
            raise refusal
        _, body, signature = parts
        try:
            claims = msgspec.json.decode(_unb64(body), type=_Claims)
            given = _unb64(signature)
        except (msgspec.MsgspecError, binascii.Error, ValueError):
            raise refusal from None
        key = self._identities.key(claims.key_id)
        secret = _UNKNOWN if key is None else self._identities.secret(key)
        is_right = hmac.compare_digest(given, _mac(secret, body)) and now_ms < claims.expires_at_ms
        is_same = key and (key.account, key.user) == (claims.account, claims.user)
        if key is None or not (is_right and is_same):
            raise refusal
        return self._by_key(key)

    def _by_key(self, key: AccessKey) -> Caller:
        assert self._identities is not None
        user = self._identities.user(key.account, key.user)
        tenant = self._identities.tenant(key.account)
        if key.status is not KeyStatus.ACTIVE or user is None or tenant is None:
            raise Unauthenticated("The key id or the secret is wrong, or the key is disabled.")
        # An operator of a suspended tenant may log in, to end the suspension.
        if tenant.is_suspended and not user.is_operator:
            raise Unauthenticated("The tenant is suspended.")
        return Caller(key.account, key.user, key.key_id, is_operator=user.is_operator)


def _basic(given: str) -> Credentials:
    try:
        key_id, _, secret = base64.b64decode(given, validate=True).decode().partition(":")
    except ValueError:
        return Credentials("", "")  # no key has an empty id
    return Credentials(key_id, secret)


def _mac(secret: bytes, body: str) -> bytes:
    key = hmac.digest(secret, _PURPOSE, hashlib.sha256)
    return hmac.digest(key, body.encode(), hashlib.sha256)


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def _unb64(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
