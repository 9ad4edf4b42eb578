"""Who is at the other end of a connection: the log-in, and whether it still counts.

    connected ── handshake names a mechanism ──► tokens go back and forth ──► logged in
        │                                               │ refused, after the same time for
        │ authentication is off: believed               ▼ whatever reason
        ▼                                          the connection ends
    as good as logged in

A log-in lasts as long as its connection, or as long as the settings say; then its client proves
itself once more on the same connection, as the same user. It ends early when what it rests on does:
the key, the password or the delegation token it was made with, its user, its tenant. That is looked
at with the first request after any change of the identities, a token with every request, and once
more for requests that have waited.

With authentication off a client that logs in is believed, and a user name of twelve digits chooses
the account. SCRAM is the exception: it proves to the client that the server knows the password, so
it works only for users who have one here.

What a password must fit is ``passwords.py``'s; what a caller may do is ``permissions.py``'s.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.passwords import PasswordRefused, Passwords, Proven, is_live
from penstock.model.errors import PenstockError, Throttled
from penstock.model.identity import (
    AccessKey,
    Caller,
    DelegationToken,
    KeyStatus,
    Limits,
    ScramCredential,
    Tenant,
)
from penstock.model.names import is_account
from penstock.net.kafka import HangUp, KafkaConnection
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.scram import DIGESTS, ScramExchange, ScramRefused

log = logging.getLogger("penstock.frontend.kafka")

PLAIN: Final = "PLAIN"
ANONYMOUS: Final = "anonymous"  # the user of a client that has not logged in
KAFKA_ANONYMOUS: Final = "ANONYMOUS"  # the same in Kafka's replies and quotas
REAUTHENTICATION_MS_MIN: Final = 1_000  # proving oneself more often is asking for work
_LOGIN: Final = "login"  # in a connection's session
_FOREVER: Final = -1
_NO_LIMITS: Final = Limits()
_NOT_HERE: Final = (
    "Authentication is off, and this user has no password here. SCRAM proves that the server knows "
    "the password; PLAIN takes any."
)


class _Told(PasswordRefused):
    """For a reason that the client gets to read."""


def user_shown(caller: Caller) -> str:
    """Return the user name as Kafka's clients know it."""
    is_anonymous = caller.is_trusted and caller.user == ANONYMOUS
    return KAFKA_ANONYMOUS if is_anonymous else caller.user


class Login:
    """Of one connection."""

    __slots__ = (
        "caller",
        "epoch",
        "exchange",
        "expires_at_ms",
        "has_tokens_only",
        "mechanism",
        "payer",
        "proven",
        "proven_at_ms",
    )

    def __init__(self, caller: Caller | None) -> None:
        self.caller = caller  # None: nobody yet
        self.proven: AccessKey | ScramCredential | DelegationToken | None = None
        self.payer: Tenant | None = None  # whom requests are charged to, if there is any limit
        self.epoch = -1  # of the identities, when it was last found to count
        self.proven_at_ms = 0
        self.expires_at_ms = _FOREVER
        # The log-in under way:
        self.mechanism: str | None = None
        self.exchange: ScramExchange | None = None
        self.has_tokens_only = False  # frames are tokens, without any header, until it is over


class TokenReply(msgspec.Struct, frozen=True):
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    token: bytes = b""
    lifetime_ms: int = 0


class Logins:
    """Of all connections of a listener."""

    def __init__(self, context: KafkaContext, *, seed: bytes = b"") -> None:
        """``seed``: what makes up salts for users that are not there, secret and always the same;
        drawn if there is none."""
        self._context = context
        self._config = context.config
        self._identities = context.identities
        self._passwords = Passwords(
            context.identities,
            own_account=context.config.account,
            entropy=context.entropy,
            seed=seed,
            clock=context.clock,
            tokens=context.tokens,
        )
        self._anonymous = Caller(context.config.account, ANONYMOUS, is_trusted=True)

    def of(self, connection: KafkaConnection) -> Login:
        login = connection.session.get(_LOGIN)
        if login is None:
            login = Login(None if self._config.is_auth_on else self._anonymous)
            connection.session[_LOGIN] = login
        assert isinstance(login, Login)
        return login

    # ── Does it still count? ─────────────────────────────────────────────────────────────────

    def check(self, login: Login) -> None:
        """Raises HangUp when the log-in has ended."""
        if login.expires_at_ms != _FOREVER:
            if self._now_ms() >= login.expires_at_ms:
                raise HangUp("the log-in was good for a time that is over")
            self._check_token(login)
        if login.epoch != self._identities.epoch:
            self._look_again(login)

    def check_again(self, login: Login) -> None:
        """For a request that has waited: it came in time, and its sender may be gone since."""
        if login.expires_at_ms != _FOREVER:
            self._check_token(login)
        if login.epoch != self._identities.epoch:
            self._look_again(login)

    def _check_token(self, login: Login) -> None:
        """Changes of tokens do not raise the epoch of the identities."""
        if isinstance(login.proven, DelegationToken) and not self._holds(login):
            raise HangUp("the delegation token is gone or has expired")

    def _look_again(self, login: Login) -> None:
        identities, caller = self._identities, login.caller
        assert caller is not None, "nobody else has a log-in that could end"
        epoch = identities.epoch
        tenant = identities.tenant(caller.account)
        if not caller.is_trusted:
            user = identities.user(caller.account, caller.user)
            if user is None or tenant is None or tenant.is_suspended or not self._holds(login):
                raise HangUp("what the log-in rests on is gone")
            if user.is_operator != caller.is_operator:
                login.caller = msgspec.structs.replace(caller, is_operator=user.is_operator)
        login.payer = None if tenant is None or tenant.limits == _NO_LIMITS else tenant
        login.epoch = epoch

    def _holds(self, login: Login) -> bool:
        identities, proven = self._identities, login.proven
        if proven is None:
            return False
        if isinstance(proven, DelegationToken):
            tokens, now_ms = self._context.tokens, self._context.clock.wall_ms()
            token = None if tokens is None else tokens.find(proven.token_id)
            return token is not None and is_live(token, identities, now_ms=now_ms)
        if isinstance(proven, AccessKey):
            key = identities.key(proven.key_id)
            return (
                key is not None
                and key.status is KeyStatus.ACTIVE
                and (key.account, key.user) == (proven.account, proven.user)
                and key.created_at_ms == proven.created_at_ms
            )
        try:
            found = identities.scram(proven.account, proven.user, proven.mechanism)
        except PenstockError:  # what cannot be opened proves nothing
            return False
        return found is not None and found.stored_key == proven.stored_key

    # ── The handshake ────────────────────────────────────────────────────────────────────────

    def mechanisms(self, connection: KafkaConnection) -> Sequence[str]:
        """PLAIN shows the password to whoever listens: with authentication on it needs TLS, or a
        way that does not leave the machine."""
        config = self._config
        is_private = connection.is_tls or config.is_insecure or _is_loopback(connection.peer)
        return (PLAIN, *DIGESTS) if is_private or not config.is_auth_on else tuple(DIGESTS)

    def begin(
        self, connection: KafkaConnection, mechanism: str, *, has_tokens_only: bool
    ) -> ErrorCode:
        login = self.of(connection)
        if login.mechanism is not None or not self._may_begin(login):
            return ErrorCode.ILLEGAL_SASL_STATE
        if mechanism not in self.mechanisms(connection):
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        login.mechanism = mechanism
        login.exchange = None
        login.has_tokens_only = has_tokens_only
        return ErrorCode.NONE

    def _may_begin(self, login: Login) -> bool:
        if login.proven_at_ms == 0:
            return True  # for the first time
        if login.expires_at_ms == _FOREVER:
            return False
        return self._now_ms() - login.proven_at_ms >= REAUTHENTICATION_MS_MIN

    # ── Tokens ───────────────────────────────────────────────────────────────────────────────

    async def take(self, connection: KafkaConnection, token: bytes) -> TokenReply:
        """The next of a client's tokens. With a code in the reply the log-in is over."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        login = self.of(connection)
        mechanism = login.mechanism
        if mechanism is None:
            return TokenReply(ErrorCode.ILLEGAL_SASL_STATE, ErrorCode.ILLEGAL_SASL_STATE.message)
        try:
            if mechanism == PLAIN:
                return self._let_in(connection, login, await self._plain(connection, token), b"")
            if login.exchange is None:
                login.exchange = self._scram_begun(mechanism, token)
                return TokenReply(token=login.exchange.server_first)
            proven, last = await self._passwords.scram_finished(login.exchange, token)
            return self._let_in(connection, login, proven, last)
        except (PasswordRefused, ScramRefused, PenstockError) as error:
            # What was sent is not written down: people type passwords into the wrong field.
            log.info(
                "log-in refused",
                extra={"peer": connection.peer, "mechanism": mechanism, "why": str(error)},
            )
            self._end(login)
            # However long it took to find out, it is said after the same time.
            ends_at = began + self._config.login_refusal_ms / 1_000
            await asyncio.sleep(max(0.0, ends_at - loop.time()))
            told = str(error) if isinstance(error, _Told) else None
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return TokenReply(code, told or code.message)

    async def _plain(self, connection: KafkaConnection, token: bytes) -> Proven:
        if self._config.is_auth_on:
            return await self._passwords.plain(token, peer=connection.peer)
        name = self._passwords.name_in(token)
        account = name if is_account(name) else self._config.account
        return Proven(Caller(account, name, is_trusted=True), None)

    def _scram_begun(self, mechanism: str, token: bytes) -> ScramExchange:
        exchange, is_known = self._passwords.scram_begun(mechanism, token)
        if not is_known and not self._config.is_auth_on:
            raise _Told(_NOT_HERE)
        return exchange

    def _let_in(
        self, connection: KafkaConnection, login: Login, proven: Proven, token: bytes
    ) -> TokenReply:
        caller = proven.caller
        if not self._config.is_auth_on and not caller.is_trusted:
            caller = msgspec.structs.replace(caller, is_trusted=True)
        before = login.caller
        is_first = login.proven_at_ms == 0
        if is_first:
            self._claim(connection, caller)
        elif before is None or (before.account, before.user) != (caller.account, caller.user):
            raise PasswordRefused("another user than before")
        now_ms = self._now_ms()
        lifetime_ms = self._lifetime_ms(proven)
        login.caller = caller
        login.proven = proven.credential
        login.proven_at_ms = now_ms
        login.expires_at_ms = now_ms + lifetime_ms if lifetime_ms else _FOREVER
        self._end(login)
        self._look_again(login)
        connection.admit()
        if isinstance(proven.credential, AccessKey):
            wall_ms = self._context.clock.wall_ms()
            self._identities.note_used(proven.credential, now_ms=wall_ms)
        return TokenReply(token=token, lifetime_ms=lifetime_ms)

    def _lifetime_ms(self, proven: Proven) -> int:
        """Return how long the log-in lasts; 0: as long as the connection."""
        login_ms, token = self._config.login_ms, proven.credential
        if not isinstance(token, DelegationToken):
            return login_ms
        left_ms = max(1, token.expires_at_ms - self._context.clock.wall_ms())
        return min(login_ms, left_ms) if login_ms else left_ms

    def _end(self, login: Login) -> None:
        """Of the log-in under way, with whatever result."""
        login.mechanism = None
        login.exchange = None
        login.has_tokens_only = False

    def _claim(self, connection: KafkaConnection, caller: Caller) -> None:
        """Raises when the tenant has its connections already."""
        quotas = self._context.quotas
        tenant = self._identities.tenant(caller.account)
        if quotas is not None and tenant is not None:
            try:
                quotas.claim(connection, tenant)
            except Throttled as error:
                raise _Told(str(error)) from None

    def _now_ms(self) -> int:
        # One more than the clock's: zero stands for never.
        return self._context.clock.mono_ms() + 1


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
