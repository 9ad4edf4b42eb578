"""What a client shows to prove who it is, held against what the identities keep.

Two kinds of names can log in. An access key, with its secret as the password; and a user who has
been given a password, of which the server keeps only what SCRAM needs. Users of other accounts than
the node's write theirs in front: ``123456789012/ann``.

A name that does not exist is treated as one that does: it has a salt, always the same, and its
password takes as long to be found wrong. Deriving keys from a password is work on purpose, so it is
done in threads, a few at a time.
"""

import asyncio
import hmac
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.model.identity import AccessKey, Caller, KeyStatus, ScramCredential
from penstock.model.ports import Identities
from penstock.model.tenancy import split_scoped
from penstock.wire.kafka import scram
from penstock.wire.kafka.scram import DIGESTS, NONCE_BYTES, ScramExchange

DERIVING_MAX: Final = 4  # at once: more would take the processor away from those who are in
DERIVED_MAX: Final = 1_000  # of access keys, remembered
NAME_CHARS_MAX: Final = 256
PASSWORD_BYTES_MAX: Final = 1_024
SEED_BYTES: Final = 32
_PLAIN_PARTS: Final = 3


class PasswordRefused(Exception):
    """The text is for our own log."""


class Proven(msgspec.Struct, frozen=True):
    caller: Caller
    credential: AccessKey | ScramCredential | None  # which has to stay as it is; None: believed

    def __repr__(self) -> str:
        return f"Proven({self.caller!r})"


class Passwords:
    def __init__(
        self,
        identities: Identities,
        *,
        own_account: str,
        entropy: Callable[[int], bytes],
        seed: bytes,
    ) -> None:
        self._identities = identities
        self._own_account = own_account
        self._entropy = entropy
        self._given_seed = seed
        self._epoch = identities.epoch
        self._derived: dict[tuple[str, str], ScramCredential] = {}  # by key id and mechanism
        self._deriving = asyncio.Semaphore(DERIVING_MAX)

    # ── PLAIN ────────────────────────────────────────────────────────────────────────────────

    def name_in(self, token: bytes) -> str:
        """Of a client that is believed. Raises PasswordRefused."""
        return _read_plain(token)[0]

    async def plain(self, token: bytes) -> Proven:
        """Raises PasswordRefused."""
        name, password = _read_plain(token)
        key = self._identities.key(name)
        if key is not None:
            is_right = hmac.compare_digest(self._identities.secret(key), password)
            if not is_right:
                raise PasswordRefused("not the secret of the key")
            return self._by_key(key)
        account, user = split_scoped(name, own_account=self._own_account)
        credential = self._stored(account, user) or self._invented(name, scram.SHA_512)
        salted = await self._salted(credential, password)
        if not scram.is_password(credential, salted):
            raise PasswordRefused("not the password of the user")
        return self._by_user(credential)

    def _stored(self, account: str, user: str) -> ScramCredential | None:
        for mechanism in (scram.SHA_512, scram.SHA_256):
            found = self._identities.scram(account, user, mechanism)
            if found is not None:
                return found
        return None

    # ── SCRAM ────────────────────────────────────────────────────────────────────────────────

    def scram_begun(self, mechanism: str, token: bytes) -> tuple[ScramExchange, bool]:
        """The exchange, and whether there is anybody by that name. Raises ScramRefused."""
        first = scram.read_client_first(token)
        account, user = split_scoped(first.user, own_account=self._own_account)
        stored = self._identities.scram(account, user, mechanism)
        shown = stored or self._invented(first.user, mechanism)
        exchange = ScramExchange(
            mechanism,
            first,
            salt=shown.salt,
            iterations=shown.iterations,
            entropy=self._entropy(NONCE_BYTES),
        )
        return exchange, stored is not None or self._identities.key(first.user) is not None

    async def scram_finished(self, exchange: ScramExchange, token: bytes) -> tuple[Proven, bytes]:
        """Who it is, and the server's last word. Raises ScramRefused and PasswordRefused."""
        name, mechanism = exchange.user, exchange.mechanism
        account, user = split_scoped(name, own_account=self._own_account)
        stored = self._identities.scram(account, user, mechanism)
        if stored is not None:
            last = exchange.finish(token, stored)
            return self._by_user(stored), last
        key = self._identities.key(name)
        if key is None:
            exchange.finish(token, self._invented(name, mechanism))
            raise PasswordRefused("there is no such user")  # nor a proof that could have fitted
        last = exchange.finish(token, await self._of_key(key, mechanism))
        return self._by_key(key), last

    async def _of_key(self, key: AccessKey, mechanism: str) -> ScramCredential:
        """A key's secret is known here, so SCRAM can be done with it as well: under the salt that
        the name would have if it did not exist."""
        if self._epoch != self._identities.epoch:
            self._epoch = self._identities.epoch
            self._derived.clear()
        place = (key.key_id, mechanism)
        found = self._derived.get(place)
        if found is None:
            salt = self._invented(key.key_id, mechanism)
            salted = await self._salted(salt, self._identities.secret(key))
            found = scram.credential_of(
                key.account,
                key.user,
                mechanism,
                salted=salted,
                salt=salt.salt,
                iterations=salt.iterations,
            )
            if len(self._derived) >= DERIVED_MAX:
                self._derived.clear()
            self._derived[place] = found
        return found

    # ── Who it is ────────────────────────────────────────────────────────────────────────────

    def _by_key(self, key: AccessKey) -> Proven:
        if key.status is not KeyStatus.ACTIVE:
            raise PasswordRefused("the key is disabled")
        return Proven(self._caller(key.account, key.user, key.key_id), key)

    def _by_user(self, credential: ScramCredential) -> Proven:
        return Proven(self._caller(credential.account, credential.user, ""), credential)

    def _caller(self, account: str, name: str, key_id: str) -> Caller:
        tenant = self._identities.tenant(account)
        user = self._identities.user(account, name)
        if tenant is None or user is None:
            raise PasswordRefused("the user is gone")
        if tenant.is_suspended:
            raise PasswordRefused("the account is suspended")
        return Caller(account, name, key_id, user.is_operator)

    # ── Work ─────────────────────────────────────────────────────────────────────────────────

    async def _salted(self, credential: ScramCredential, password: bytes) -> bytes:
        async with self._deriving:
            return await asyncio.to_thread(
                scram.salted_password,
                credential.mechanism,
                password,
                salt=credential.salt,
                iterations=credential.iterations,
            )

    def _invented(self, name: str, mechanism: str) -> ScramCredential:
        assert mechanism in DIGESTS
        if not self._given_seed:
            self._given_seed = self._entropy(SEED_BYTES)
        return scram.invented("", name, mechanism, seed=self._given_seed)


def _read_plain(token: bytes) -> tuple[str, bytes]:
    """Name and password. Raises PasswordRefused."""
    parts = token.split(b"\0")
    if len(parts) != _PLAIN_PARTS:
        raise PasswordRefused("not a PLAIN message")
    acting, name, password = parts
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise PasswordRefused("the name is not UTF-8") from None
    if not 0 < len(text) <= NAME_CHARS_MAX or len(password) > PASSWORD_BYTES_MAX:
        raise PasswordRefused("the name is empty, or it or the password too long")
    if acting not in (b"", name):
        raise PasswordRefused("nobody may act as somebody else")
    return text, password
