"""Checks passwords of clients that log in by PLAIN or SCRAM.

A client logs in with one of three kinds of names: an access key, with its secret as the password;
the name of a user with a password (the server stores only what SCRAM needs); or, with SCRAM only,
the id of a delegation token, with its HMAC in base64 as the password. If a user does not belong to
the account of the node, the account is in front of the name: ``123456789012/ann``.

Clients cannot find out whether a name exists: an unknown name has a salt that never changes and a
plausible number of iterations, and its rejection takes as long as that of a wrong password.
Deriving keys from a password is slow on purpose, so it is done in threads."""

import asyncio
import base64
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from penstock.metadata.security.acl_rules import DelegationTokens
from penstock.model.identity import AccessKey, Caller, DelegationToken, KeyStatus, ScramCredential
from penstock.model.limits import DERIVATIONS_MAX
from penstock.model.names import scoped_id, split_scoped
from penstock.model.ports import Clock, Identities
from penstock.net.listener import source_of
from penstock.wire.kafka import scram
from penstock.wire.kafka.scram import DIGESTS, NONCE_BYTES, ScramExchange

Work = Callable[[], bytes]
DERIVED_MAX: Final = 1_000  # cached credentials that were derived from secrets
NAME_CHARS_MAX: Final = 256
PASSWORD_BYTES_MAX: Final = 1_024
SEED_BYTES: Final = 32
_PLAIN_PARTS: Final = 3
# Prefix of token ids when their salts are derived. No user name begins like this. Without it, a
# token id and an unknown user of that name would have the same salt, which would tell clients that
# the user does not exist.
_TOKEN: Final = "\0token/"  # noqa: S105


class PasswordHashing:
    """Derives keys from passwords in a few threads. The payer of a login is the tenant of the user,
    or the client's address if the user is unknown. Payers take turns, each with one thread."""

    def __init__(self) -> None:
        # By payer, the next payer first: the work of each waiting login, in order of arrival.
        self._waiting: dict[str, dict[asyncio.Future[bytes], Work]] = {}
        self._running: set[str] = set()  # payers

    async def run(self, payer: str, work: Work) -> bytes:
        """Return the result of ``work``, which runs in a thread when it is the payer's turn."""
        waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(payer, {})[waiter] = work
        self._start()
        try:
            return await waiter
        finally:
            waiting = self._waiting.get(payer, {})
            # The work is still waiting if the client has disconnected.
            if waiting.pop(waiter, None) is not None and not waiting:
                del self._waiting[payer]

    def _start(self) -> None:
        while len(self._running) < DERIVATIONS_MAX:
            payer = next((each for each in self._waiting if each not in self._running), None)
            if payer is None:
                return
            waiting = self._waiting.pop(payer)
            waiter = next(iter(waiting))
            work = waiting.pop(waiter)
            if waiting:
                self._waiting[payer] = waiting  # after all other payers
            self._running.add(payer)
            thread = asyncio.get_running_loop().run_in_executor(None, work)
            thread.add_done_callback(partial(self._end, payer, waiter))

    def _end(self, payer: str, waiter: asyncio.Future[bytes], done: asyncio.Future[bytes]) -> None:
        """Pass the result of a thread to the login that waits for it, and start the next work."""
        self._running.discard(payer)
        error = done.exception()
        if not waiter.done():
            if error is None:
                waiter.set_result(done.result())
            else:
                waiter.set_exception(error)
        self._start()


class PasswordRefused(Exception):
    """Raised if a login is rejected. The text is logged but not sent to the client."""


class Proven(msgspec.Struct, frozen=True):
    caller: Caller
    # The login ends when the credential changes. None: the client is trusted.
    credential: AccessKey | ScramCredential | DelegationToken | None

    def __repr__(self) -> str:
        return f"Proven({self.caller!r})"


@dataclass(kw_only=True, eq=False, repr=False)
class Passwords:
    identities: Identities
    own_account: str
    entropy: Callable[[int], bytes]
    seed: bytes  # secret from which salts of unknown users are derived
    clock: Clock
    tokens: DelegationTokens | None = None

    def __post_init__(self) -> None:
        self._epoch = self.identities.epoch
        # By key id or token, mechanism and iterations:
        self._derived: dict[tuple[str, str, int], ScramCredential] = {}
        self._hashing = PasswordHashing()

    async def plain(self, token: bytes, *, peer: str) -> Proven:
        """Check the name and password in a PLAIN token. ``peer`` is the address of the client."""
        name, password = read_plain(token)
        key = self.identities.key(name)
        if key is not None:
            if not hmac.compare_digest(self.identities.secret(key), password):
                raise PasswordRefused("the secret does not belong to this access key")
            return self._by_key(key)
        account, user = split_scoped(name, own_account=self.own_account)
        find = self.identities.scram
        stored = find(account, user, scram.SHA_512) or find(account, user, scram.SHA_256)
        credential = stored or self._invented(account, user, scram.SHA_512)
        payer = account if stored is not None else source_of(peer)
        salted = await self._salted(credential, password, payer=payer)
        if not scram.is_password(credential, salted):
            raise PasswordRefused("the password is wrong or the user is unknown")
        return self._proven(credential, credential.user)

    def begin_scram(self, mechanism: str, token: bytes) -> tuple[ScramExchange, bool]:
        """Start a SCRAM login. Return its state and whether the user, key or token exists."""
        first = scram.read_client_first(token)
        account, user = split_scoped(first.user, own_account=self.own_account)
        stored = None
        if first.is_token:
            shown = self._invented(self.own_account, _TOKEN + first.user, mechanism)
        else:
            stored = self.identities.scram(account, user, mechanism)
            shown = stored or self._invented(account, user, mechanism)
        exchange = ScramExchange(
            mechanism,
            first,
            salt=shown.salt,
            iterations=shown.iterations,
            entropy=self.entropy(NONCE_BYTES),
        )
        if first.is_token:
            return exchange, self.live_token(first.user) is not None
        return exchange, stored is not None or self.identities.key(first.user) is not None

    async def finish_scram(self, exchange: ScramExchange, token: bytes) -> tuple[Proven, bytes]:
        """Check the proof in a SCRAM login. Return the caller and the server's last message."""
        if exchange.is_token:
            return await self._finish_token(exchange, token)
        name, mechanism = exchange.user, exchange.mechanism
        account, user = split_scoped(name, own_account=self.own_account)
        stored = self.identities.scram(account, user, mechanism)
        if stored is not None:
            last = exchange.finish(token, stored)
            return self._proven(stored, stored.user), last
        key = self.identities.key(name)
        if key is None:
            exchange.finish(token, self._invented(account, user, mechanism))
            raise PasswordRefused("the user is unknown")  # no proof fits an invented credential
        # The salt of an access key is that of an unknown user with its name.
        if self._epoch != self.identities.epoch:
            self._epoch = self.identities.epoch
            self._derived.clear()
        found = await self._derived_from(
            self.identities.secret(key), exchange, key.key_id, key.account, key.user
        )
        last = exchange.finish(token, found)
        return self._by_key(key), last

    async def _derived_from(
        self, secret: bytes, exchange: ScramExchange, name: str, account: str, user: str
    ) -> ScramCredential:
        mechanism, iterations = exchange.mechanism, exchange.iterations
        cached = (name, mechanism, iterations)
        if (known := self._derived.get(cached)) is not None:
            return known
        invented = self._invented(self.own_account, name, mechanism)
        shown = msgspec.structs.replace(invented, iterations=iterations)
        salted = await self._salted(shown, secret, payer=account)
        found = scram.credential_of(
            account, user, mechanism, salted=salted, salt=shown.salt, iterations=iterations
        )
        if len(self._derived) >= DERIVED_MAX:
            self._derived.clear()
        self._derived[cached] = found
        return found

    def live_token(self, token_id: str) -> DelegationToken | None:
        token = None if self.tokens is None else self.tokens.find(token_id)
        if token is None or not is_live(token, self.identities, now_ms=self.clock.wall_ms()):
            return None
        return token

    async def _finish_token(self, exchange: ScramExchange, message: bytes) -> tuple[Proven, bytes]:
        token, mechanism = self.live_token(exchange.user), exchange.mechanism
        name = _TOKEN + exchange.user
        if token is None or self.tokens is None:
            exchange.finish(message, self._invented(self.own_account, name, mechanism))
            raise PasswordRefused("the delegation token is unknown or has expired")
        secret = base64.b64encode(self.tokens.hmac_of(token.token_id))
        found = await self._derived_from(secret, exchange, name, token.account, token.owner)
        last = exchange.finish(message, found)
        return self._proven(token, token.owner), last

    def _by_key(self, key: AccessKey) -> Proven:
        if key.status is not KeyStatus.ACTIVE:
            raise PasswordRefused("the access key is disabled")
        return self._proven(key, key.user, key.key_id)

    def _proven(
        self,
        credential: AccessKey | ScramCredential | DelegationToken,
        name: str,
        key_id: str = "",
    ) -> Proven:
        account = credential.account
        tenant = self.identities.tenant(account)
        user = self.identities.user(account, name)
        if tenant is None or user is None:
            raise PasswordRefused("the user does not exist")
        if tenant.is_suspended:
            raise PasswordRefused("the account is suspended")
        return Proven(Caller(account, name, key_id, user.is_operator), credential)

    async def _salted(self, credential: ScramCredential, password: bytes, *, payer: str) -> bytes:
        mechanism, salt, count = credential.mechanism, credential.salt, credential.iterations
        derive = scram.salted_password
        return await self._hashing.run(
            payer, lambda: derive(mechanism, password, salt=salt, iterations=count)
        )

    def _invented(self, account: str, user: str, mechanism: str) -> ScramCredential:
        assert mechanism in DIGESTS
        if not self.seed:
            self.seed = self.entropy(SEED_BYTES)
        name = scoped_id(account, user, own_account=self.own_account)
        counts = self._counts(account, mechanism)
        return scram.invented("", name, mechanism, seed=self.seed, counts=counts)

    def _counts(self, account: str, mechanism: str) -> Mapping[int, int]:
        """Return how many passwords of the tenant have each number of iterations. For an unknown
        tenant, return the counts of a known one, so that clients see no difference."""
        by_account = self.identities.iteration_counts(mechanism)
        found = by_account.get(account)
        if found is not None or not by_account:
            return found or {}
        drawn = hmac.digest(self.seed, f"tenant/{account}".encode(), "sha256")
        accounts = sorted(by_account)  # the same on every node
        return by_account[accounts[scram.scaled(drawn, len(accounts))]]


def is_live(token: DelegationToken, identities: Identities, *, now_ms: int) -> bool:
    """Return whether the token is unexpired and its owner is still the same user."""
    owner = identities.user(token.account, token.owner)
    is_same = owner is not None and owner.created_at_ms == token.owner_created_at_ms
    return is_same and not token.is_expired(now_ms=now_ms)


def read_plain(token: bytes) -> tuple[str, bytes]:
    parts = token.split(b"\0")
    if len(parts) != _PLAIN_PARTS:
        raise PasswordRefused("the PLAIN token is malformed")
    acting, name, password = parts
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise PasswordRefused("the name is not UTF-8") from None
    if not 0 < len(text) <= NAME_CHARS_MAX or len(password) > PASSWORD_BYTES_MAX:
        raise PasswordRefused("the name is empty or too long, or the password is too long")
    if acting not in (b"", name):
        raise PasswordRefused("a PLAIN login cannot act as another user")
    return text, password
