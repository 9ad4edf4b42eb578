"""Logs clients in, and checks whether the login of a connection is still valid.

    connected ── handshake names a mechanism ──► tokens go back and forth ──► logged in
        │                                               │ rejected, after the same time for
        │ authentication is off: trusted                ▼ any reason
        ▼                                          the connection ends
    may do everything

A login lasts as long as its connection, or for the configured time; then the client logs in again
on the same connection, as the same user. A login ends early when its key, password, delegation
token, user or tenant is deleted or changed. This is checked at the first request after any change
of identities, at every request if a token was used, and again after a request has waited.

With authentication off every client that logs in is trusted, and a user name of twelve digits
chooses the account. SCRAM also proves to the client that the server knows the password, so it works
only for users who have a password on the server."""

import asyncio
import ipaddress
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.frontend.kafka.config import KafkaConfig
from penstock.frontend.kafka.login.passwords import PasswordRefused, Passwords, Proven, read_plain
from penstock.frontend.limits.quotas import TenantQuotas
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
from penstock.net.kafka.listener import HangUp, KafkaConnection
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.scram import DIGESTS, ScramExchange, ScramRefused

log = logging.getLogger("penstock.frontend.kafka")

PLAIN: Final = "PLAIN"
ANONYMOUS: Final = "anonymous"  # the user of a client that has not logged in
KAFKA_ANONYMOUS: Final = "ANONYMOUS"  # the same in Kafka's replies and quotas
REAUTHENTICATION_MS_MIN: Final = 1_000  # shortest time between two logins of a connection
_LOGIN: Final = "login"  # key in a connection's session
_FOREVER: Final = -1
_NO_LIMITS: Final = Limits()
_NOT_HERE: Final = (
    "Authentication is off, and this user has no password on the server, which SCRAM needs. "
    "Use PLAIN, which accepts any password."
)


class _ReportedToClient(PasswordRefused):
    """Raised if a login is rejected for a reason that the client may see."""


def user_shown(caller: Caller) -> str:
    """Return the user name to show to Kafka clients, which is ANONYMOUS without a login."""
    is_anonymous = caller.is_trusted and caller.user == ANONYMOUS
    return KAFKA_ANONYMOUS if is_anonymous else caller.user


@dataclass(slots=True, eq=False, repr=False)
class Login:
    caller: Caller | None  # None: not logged in
    proven: AccessKey | ScramCredential | DelegationToken | None = None
    payer: Tenant | None = None  # the tenant whose limits apply; None: no limits
    epoch: int = -1  # epoch of the identities at the last check
    proven_at_ms: int = 0
    expires_at_ms: int = _FOREVER
    # The login in progress:
    mechanism: str | None = None
    exchange: ScramExchange | None = None
    has_tokens_only: bool = False  # until the login ends, frames are tokens without a header


class TokenReply(msgspec.Struct, frozen=True):
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    token: bytes = b""
    lifetime_ms: int = 0


class Logins:
    def __init__(
        self, config: KafkaConfig, passwords: Passwords, quotas: TenantQuotas | None
    ) -> None:
        self._config = config
        self._passwords = passwords
        self._identities = passwords.identities
        self._clock = passwords.clock
        self._quotas = quotas
        self._anonymous = Caller(config.account, ANONYMOUS, is_trusted=True)

    def of(self, connection: KafkaConnection) -> Login:
        login = connection.session.get(_LOGIN)
        if login is None:
            login = Login(None if self._config.is_auth_on else self._anonymous)
            connection.session[_LOGIN] = login
        assert isinstance(login, Login)
        return login

    def check(self, login: Login) -> None:
        """Raise HangUp if the login has expired or its credentials are no longer valid."""
        if login.expires_at_ms != _FOREVER:
            if self._now_ms() >= login.expires_at_ms:
                raise HangUp("the login has expired")
            self.check_again(login)
        elif login.epoch != self._identities.epoch:
            self._recheck(login)

    def check_again(self, login: Login) -> None:
        """Check the login of a request that has waited. Expiry during the wait is not an error."""
        # Changes of tokens do not raise the epoch of the identities.
        is_token = login.expires_at_ms != _FOREVER and isinstance(login.proven, DelegationToken)
        if is_token and not self._is_valid(login):
            raise HangUp("the delegation token was deleted or has expired")
        if login.epoch != self._identities.epoch:
            self._recheck(login)

    def _recheck(self, login: Login) -> None:
        identities, caller = self._identities, login.caller
        assert caller is not None, "a login that is checked has a caller"
        epoch = identities.epoch
        tenant = identities.tenant(caller.account)
        if not caller.is_trusted:
            user = identities.user(caller.account, caller.user)
            if user is None or tenant is None or tenant.is_suspended or not self._is_valid(login):
                raise HangUp("the credentials of the login are no longer valid")
            if user.is_operator != caller.is_operator:
                login.caller = msgspec.structs.replace(caller, is_operator=user.is_operator)
        login.payer = None if tenant is None or tenant.limits == _NO_LIMITS else tenant
        login.epoch = epoch

    def _is_valid(self, login: Login) -> bool:
        identities, proven = self._identities, login.proven
        if proven is None:
            return False
        if isinstance(proven, DelegationToken):
            return self._passwords.live_token(proven.token_id) is not None
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
        except PenstockError:  # the credential cannot be decrypted
            return False
        return found is not None and found.stored_key == proven.stored_key

    def mechanisms(self, connection: KafkaConnection) -> Sequence[str]:
        """Return the allowed mechanisms. PLAIN sends passwords, so it needs TLS or localhost."""
        config = self._config
        is_private = connection.is_tls or config.is_insecure or _is_loopback(connection.peer)
        return (PLAIN, *DIGESTS) if is_private or not config.is_auth_on else tuple(DIGESTS)

    def begin(
        self, connection: KafkaConnection, mechanism: str, *, has_tokens_only: bool
    ) -> ErrorCode:
        login = self.of(connection)
        may_begin = login.proven_at_ms == 0 or (
            login.expires_at_ms != _FOREVER
            and self._now_ms() - login.proven_at_ms >= REAUTHENTICATION_MS_MIN
        )
        if login.mechanism is not None or not may_begin:
            return ErrorCode.ILLEGAL_SASL_STATE
        if mechanism not in self.mechanisms(connection):
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        login.mechanism = mechanism
        login.exchange = None
        login.has_tokens_only = has_tokens_only
        return ErrorCode.NONE

    async def take(self, connection: KafkaConnection, token: bytes) -> TokenReply:
        """Process the next token of a login. The reply has an error code if the login fails."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        login = self.of(connection)
        mechanism = login.mechanism
        if mechanism is None:
            return TokenReply(ErrorCode.ILLEGAL_SASL_STATE, ErrorCode.ILLEGAL_SASL_STATE.message)
        try:
            if mechanism == PLAIN:
                if self._config.is_auth_on:
                    proven = await self._passwords.plain(token, peer=connection.peer)
                else:
                    name, _ = read_plain(token)
                    account = name if is_account(name) else self._config.account
                    proven = Proven(Caller(account, name, is_trusted=True), None)
                return self._accept(connection, login, proven, b"")
            if login.exchange is None:
                login.exchange, is_known = self._passwords.begin_scram(mechanism, token)
                if not is_known and not self._config.is_auth_on:
                    raise _ReportedToClient(_NOT_HERE)
                return TokenReply(token=login.exchange.server_first)
            proven, last = await self._passwords.finish_scram(login.exchange, token)
            return self._accept(connection, login, proven, last)
        except (PasswordRefused, ScramRefused, PenstockError) as error:
            # The name is not logged, because people type passwords into the wrong field.
            log.info(
                "login rejected",
                extra={"peer": connection.peer, "mechanism": mechanism, "reason": str(error)},
            )
            self._end(login)
            # Every rejection takes the same time, whatever the reason.
            ends_at = began + self._config.login_refusal_ms / 1_000
            await asyncio.sleep(max(0.0, ends_at - loop.time()))
            reported = str(error) if isinstance(error, _ReportedToClient) else None
            code = ErrorCode.SASL_AUTHENTICATION_FAILED
            return TokenReply(code, reported or code.message)

    def _accept(
        self, connection: KafkaConnection, login: Login, proven: Proven, token: bytes
    ) -> TokenReply:
        caller, credential = proven.caller, proven.credential
        if not self._config.is_auth_on and not caller.is_trusted:
            caller = msgspec.structs.replace(caller, is_trusted=True)
        before = login.caller
        if login.proven_at_ms == 0:
            tenant = self._identities.tenant(caller.account)
            if self._quotas is not None and tenant is not None:
                try:
                    self._quotas.claim(connection, tenant)
                except Throttled as error:  # the tenant has its maximum number of connections
                    raise _ReportedToClient(str(error)) from None
        elif before is None or (before.account, before.user) != (caller.account, caller.user):
            raise PasswordRefused("the connection is logged in as another user")
        now_ms, wall_ms = self._now_ms(), self._clock.wall_ms()
        lifetime_ms = self._config.login_ms  # 0: as long as the connection
        if isinstance(credential, DelegationToken):
            left_ms = max(1, credential.expires_at_ms - wall_ms)
            lifetime_ms = min(lifetime_ms, left_ms) if lifetime_ms else left_ms
        login.caller = caller
        login.proven = credential
        login.proven_at_ms = now_ms
        login.expires_at_ms = now_ms + lifetime_ms if lifetime_ms else _FOREVER
        self._end(login)
        self._recheck(login)
        connection.admit()
        if isinstance(credential, AccessKey):
            self._identities.note_used(credential, now_ms=wall_ms)
        return TokenReply(token=token, lifetime_ms=lifetime_ms)

    def _end(self, login: Login) -> None:
        login.mechanism = None
        login.exchange = None
        login.has_tokens_only = False

    def _now_ms(self) -> int:
        # Never 0, because 0 means that the client has not logged in.
        return self._clock.mono_ms() + 1


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
