"""Kafka's access rules (ACLs) and delegation tokens in the metadata store, each in its own entry.
Every node has all entries in memory, updated by a watch.

    /acls/{account}/{SHA-256 of the value}    the rule as JSON
    /tokens/{token id}                        the token as JSON, without its secret

The entry of a rule is never changed, and its key is the hash of the rule. So adding a rule that
exists changes nothing, and changes of different rules never conflict. The secret of a token, its
HMAC, is computed from the token id and a key that all nodes share."""

import hashlib
import hmac
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import msgspec

from penstock.metadata.cache import TRIES_MAX, Cache, put_in, write_all
from penstock.metadata.store import Store
from penstock.model import limits
from penstock.model.acls import Acl, AclIndex
from penstock.model.errors import InvalidRequest, QuotaExceeded, Throttled, VersionConflict
from penstock.model.identity import DelegationToken
from penstock.model.names import is_account
from penstock.wire.internal.faults import OutcomeUnknown

ACLS_PREFIX: Final = "/acls/"
TOKENS_PREFIX: Final = "/tokens/"
RULES_PER_TXN_MAX: Final = 32  # at most 20 KB each: well below the size limit of a transaction

_decode_acl = msgspec.json.Decoder(Acl).decode
_decode_token = msgspec.json.Decoder(DelegationToken).decode
_encode = msgspec.json.Encoder().encode


def acl_key(account: str, rule: Acl) -> str:
    return f"{ACLS_PREFIX}{account}/{hashlib.sha256(_encode(rule)).hexdigest()}"


def account_of(key: str) -> str:
    account = key.removeprefix(ACLS_PREFIX).partition("/")[0]
    if not is_account(account):
        raise InvalidRequest(f"{key} is not the key of an access rule.")
    return account


def decode_acl(value: bytes) -> Acl:
    rule = _decode_acl(value)
    if max(map(len, (rule.principal, rule.host, rule.resource_name))) > limits.ACL_TEXT_CHARS_MAX:
        raise ValueError(
            "the principal, host or resource name of an access rule has more than"
            f" {limits.ACL_TEXT_CHARS_MAX} characters"
        )
    return rule


class AclRules(Cache[Acl]):
    def __init__(self, store: Store, *, on_rules_change: Callable[[], None]) -> None:
        super().__init__(store, ACLS_PREFIX, decode=decode_acl, on_change=self._on_rule_change)
        self._on_rules_change = on_rules_change
        self._indexes: dict[str, AclIndex] = {}  # by account; none of them is empty

    def of(self, account: str) -> AclIndex | None:
        return self._indexes.get(account)

    async def add(self, account: str, rules: Collection[Acl]) -> None:
        """Add the rules that do not exist yet. Raises QuotaExceeded if they exceed a limit."""
        known = self.of(account) or ()
        unique = list(dict.fromkeys(rules))
        self._check_room(account, sum(rule not in known for rule in unique))
        for some in _portions(unique):
            await self._write_all(account, some, is_put=True)

    async def remove(self, account: str, rules: Collection[Acl]) -> None:
        for some in _portions(list(rules)):
            await self._write_all(account, some, is_put=False)

    async def remove_all(self, account: str) -> None:
        await self.remove(account, list(self.of(account) or ()))

    def _check_room(self, account: str, added: int) -> None:
        # Counts the rules in memory: nodes that add rules at the same time may exceed a limit.
        used = len(self.of(account) or ())
        if added and used + added > limits.ACLS_PER_TENANT_MAX:
            raise QuotaExceeded(
                f"This tenant has {used:,} of {limits.ACLS_PER_TENANT_MAX:,} access rules;"
                f" {added:,} more exceed the limit. Delete some."
            )
        if added and len(self) + added > limits.ACLS_MAX:
            raise QuotaExceeded(
                f"All tenants together have {len(self):,} of {limits.ACLS_MAX:,} access rules;"
                f" {added:,} more exceed the limit. Delete some."
            )

    async def _write_all(self, account: str, rules: Sequence[Acl], *, is_put: bool) -> None:
        """Put or delete rules in one transaction. If the versions in memory are out of date, or
        the outcome is unknown, the versions are read from the store and the write is repeated."""
        entries = {acl_key(account, rule): rule for rule in rules}
        versions = {key: self.version(key) for key in entries}
        for _ in range(TRIES_MAX):
            changed = [key for key, version in versions.items() if is_put is (version == 0)]
            writes = [(self, key, entries[key] if is_put else None) for key in changed]
            try:
                await write_all(self._store, list(versions.items()), writes)
                return
            except (VersionConflict, OutcomeUnknown):
                versions = {key: (await self.refresh(key))[1] for key in entries}
        raise Throttled("The access rules are being changed by another request; retry.")

    def _on_rule_change(self, key: str, before: Acl | None, after: Acl | None) -> None:
        account = account_of(key)
        index = self._indexes.setdefault(account, AclIndex())
        if before is not None:
            index.remove(before)
        if after is not None:
            index.add(after)
        if not index:
            del self._indexes[account]
        self._on_rules_change()


def _portions(rules: Sequence[Acl]) -> Iterator[Sequence[Acl]]:
    for start in range(0, len(rules), RULES_PER_TXN_MAX):
        yield rules[start : start + RULES_PER_TXN_MAX]


_ID = re.compile(r"[A-Za-z0-9_-]{22}\Z")
Change = Callable[[DelegationToken], DelegationToken | None]


def token_key(token_id: str) -> str:
    return f"{TOKENS_PREFIX}{token_id}"


def decode_token(value: bytes) -> DelegationToken:
    token = _decode_token(value)
    names = (token.owner, token.requester, *token.renewers)
    if not is_account(token.account) or _ID.match(token.token_id) is None:
        raise ValueError("a delegation token must have an account and an id of 22 characters")
    if (
        len(token.renewers) > limits.TOKEN_RENEWERS_MAX
        or max(map(len, names)) > limits.ACL_TEXT_CHARS_MAX
    ):
        raise ValueError("a delegation token has too many renewers, or a name that is too long")
    return token


class DelegationTokens(Cache[DelegationToken]):
    def __init__(self, store: Store, secret: bytes) -> None:
        super().__init__(store, TOKENS_PREFIX, decode=decode_token, on_change=self._on_token_change)
        self._secret = secret  # the key of all HMACs, the same on every node
        self._by_account: dict[str, dict[str, DelegationToken]] = {}
        self._by_hmac: dict[bytes, DelegationToken] = {}

    def find(self, token_id: str) -> DelegationToken | None:
        return self.get(token_key(token_id))

    def find_by_hmac(self, account: str, value: bytes) -> DelegationToken | None:
        token = self._by_hmac.get(value)
        return token if token is not None and token.account == account else None

    def of(self, account: str) -> Collection[DelegationToken]:
        return self._by_account.get(account, {}).values()

    def hmac_of(self, token_id: str) -> bytes:
        return hmac.digest(self._secret, token_id.encode(), "sha512")

    async def create(self, token: DelegationToken) -> None:
        """Store a new token. Raises QuotaExceeded if there are already too many tokens."""
        self._check_room(token.account)
        key = token_key(token.token_id)
        try:
            await self.write(key, token, if_version=0)
        except OutcomeUnknown:  # ids are random: no other node writes this key
            found, _ = await self.refresh(key)
            if found is None:
                raise

    async def change(self, token_id: str, change: Change) -> DelegationToken | None:
        """Replace a token by ``change(token)``, or delete it if the result is None. Returns the new
        or deleted token, or None if the token does not exist."""
        found: DelegationToken | None = None

        def step(before: DelegationToken | None) -> DelegationToken | None:
            nonlocal found
            after = None if before is None else change(before)
            found = after or before
            return after

        await self.update(token_key(token_id), step, what="The delegation token")
        return found

    async def sweep(self, *, now_ms: int) -> int:
        expired = [token for token in self.values() if token.is_expired(now_ms=now_ms)]

        def left(token: DelegationToken) -> DelegationToken | None:
            return None if token.is_expired(now_ms=now_ms) else token

        for token in expired:
            await self.change(token.token_id, left)
        return len(expired)

    def _check_room(self, account: str) -> None:
        # Counts the tokens in memory: nodes that add tokens at the same time may exceed a limit.
        used, most = len(self.of(account)), limits.TOKENS_MAX
        if used >= limits.TOKENS_PER_TENANT_MAX:
            raise QuotaExceeded(
                f"This tenant has {used:,} of {limits.TOKENS_PER_TENANT_MAX:,} delegation tokens;"
                " expire some of them, or wait until some have expired."
            )
        if len(self) >= most:
            raise QuotaExceeded(
                f"All tenants together have {most:,} of {most:,} delegation tokens;"
                " expire some of them, or wait until some have expired."
            )

    def _on_token_change(
        self, _key: str, before: DelegationToken | None, after: DelegationToken | None
    ) -> None:
        if before is not None:
            put_in(self._by_account, before.account, before.token_id, None)
            del self._by_hmac[self.hmac_of(before.token_id)]
        if after is not None:
            put_in(self._by_account, after.account, after.token_id, after)
            self._by_hmac[self.hmac_of(after.token_id)] = after
