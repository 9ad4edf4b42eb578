"""Tenants, users, keys and passwords: their entries in the store, and the copy in the memory of
this node. ``identities.py`` contains the changes.

    /tenants/{account}                     the tenant, and its number of users
    /users/{account}/{name}                the user, with its key ids and mechanisms
    /keys/{key_id}                         the key, with its secret encrypted
    /scram/{account}/{user}/{mechanism}    the data to verify a password, encrypted

Adding a user also changes the number in the tenant's entry; adding a key also changes the ids in
the user's entry. So two nodes cannot exceed a limit at the same time, and nothing can be added to
an entry that is being deleted. A key is invalid as soon as its user's entry does not name it, even
before a watch reports that the key is deleted.

Values are JSON. A secret is encrypted with the metadata key of its entry as context, so that it
cannot be copied to another entry. In memory secrets stay encrypted; they are decrypted for each
use. Watches report changes by other nodes. Each change increments ``epoch``, which invalidates
authorization decisions cached elsewhere."""

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from penstock.metadata.cache import Cache, WatchGroup, put_in
from penstock.metadata.security.acl_rules import AclRules
from penstock.metadata.store import Store
from penstock.model.acls import AclIndex
from penstock.model.errors import InvalidRequest
from penstock.model.identity import AccessKey, Limits, Rate, ScramCredential, Tenant, User
from penstock.model.limits import KIB, SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN
from penstock.model.names import is_account
from penstock.model.ports import KeyRing

TENANTS_PREFIX = "/tenants/"
USERS_PREFIX = "/users/"
KEYS_PREFIX = "/keys/"
SCRAM_PREFIX = "/scram/"

TENANTS_MAX = 10_000
USERS_PER_TENANT_MAX = 1_000
USERS_MAX = 100_000  # over all tenants: all of them are in the memory of every node
KEYS_PER_USER_MAX = 4  # two in use, two being rotated
POLICIES_PER_USER_MAX = 20
POLICY_BYTES_MAX = 20 * KIB
# The one policy that is a list of Kafka's access rules, one statement each.
ACLS_POLICY = "kafka-acls"
ACLS_BYTES_MAX = 128 * KIB
# Of all policies of a user. Escaped as JSON their size can double, and must still fit one entry.
POLICIES_BYTES_MAX = 200 * KIB
OPERATION_RATES_MAX = 100  # more than there are actions

KEY_ID_PREFIX = "PSAK"
KEY_ID_ENTROPY_BYTES = 10  # sixteen characters of base32
SECRET_ENTROPY_BYTES = 30  # forty characters of base64

KEY_BYTES_BY_MECHANISM = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
SALT_BYTES_MAX = 255  # chosen by clients; may be empty, as in Kafka
USER_NAME_CHARS_MAX = 200  # with the account before it, a login name has at most 256

_TENANT_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._-]{0,62}[A-Za-z0-9._-])?\Z")
_POLICY_NAME = re.compile(r"[A-Za-z0-9_+=,.@-]{1,128}\Z")
_KEY_ID = re.compile(r"[A-Za-z0-9_]{16,128}\Z")
_SECRET = re.compile(r"[!-~]{16,128}\Z")
_ACTION = re.compile(r"[a-z]{1,32}:[A-Za-z]{1,64}\Z")


class TenantEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    tenant: Tenant
    user_count: int = 0


class UserEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    user: User
    key_ids: tuple[str, ...] = ()  # oldest first
    mechanisms: tuple[str, ...] = ()


def tenant_key(account: str) -> str:
    return f"{TENANTS_PREFIX}{account}"


def user_key(account: str, name: str) -> str:
    return f"{USERS_PREFIX}{account}/{name}"


def key_key(key_id: str) -> str:
    return f"{KEYS_PREFIX}{key_id}"


def scram_key(account: str, user: str, mechanism: str) -> str:
    return f"{SCRAM_PREFIX}{account}/{user}/{mechanism}"


decode_tenant = msgspec.json.Decoder(TenantEntry).decode
decode_user = msgspec.json.Decoder(UserEntry).decode
decode_key = msgspec.json.Decoder(AccessKey).decode
decode_scram = msgspec.json.Decoder(ScramCredential).decode


def new_key_id(entropy: bytes) -> str:
    assert len(entropy) == KEY_ID_ENTROPY_BYTES
    return KEY_ID_PREFIX + base64.b32encode(entropy).decode("ascii")


def new_secret(entropy: bytes) -> str:
    assert len(entropy) == SECRET_ENTROPY_BYTES
    return base64.urlsafe_b64encode(entropy).decode("ascii")


def new_account(entropy: bytes) -> str:
    # The first digit is not 0: the account of unauthenticated callers begins with 0.
    span = 900_000_000_000
    return str(100_000_000_000 + int.from_bytes(entropy, "big") % span)


def check_tenant(tenant: Tenant) -> None:
    if not is_account(tenant.account):
        raise InvalidRequest("An account id must be 12 digits.")
    if _TENANT_NAME.match(tenant.name) is None:
        raise InvalidRequest(
            "A tenant name must be 1 to 64 letters, digits, spaces, '.', '_' and '-'. It must begin"
            " with a letter or digit, and must not end with a space."
        )
    _check_limits(tenant.limits)
    for field in msgspec.structs.fields(tenant.quotas):
        if (getattr(tenant.quotas, field.name) or 0) < 0:
            raise InvalidRequest(f"{field.name} must be 0 (no limit) or more.")


def _check_limits(limits: Limits) -> None:
    if len(limits.operations) > OPERATION_RATES_MAX:
        raise InvalidRequest(f"At most {OPERATION_RATES_MAX} operations can have their own rate.")
    for action in limits.operations:
        if _ACTION.match(action) is None:
            raise InvalidRequest(f"{action!r} is not an action such as sqs:SendMessage.")
    named: dict[str, Rate] = {
        "tenant_requests": limits.tenant_requests or Rate(),
        "tenant_bytes": limits.tenant_bytes,
        "user_requests": limits.user_requests,
        "queue_requests": limits.queue_requests,
        **limits.operations,
    }
    for name, rate in named.items():
        for value in (rate.per_s, rate.burst):
            if not (math.isfinite(value) and value >= 0):
                raise InvalidRequest(f"The rate {name} must be 0 (no limit) or more.")
        if rate.burst and not rate.per_s:
            raise InvalidRequest(f"The rate {name} has a burst but no rate per second.")


def check_user_name(name: str) -> None:
    # Kafka allows any name; here "/" separates the account from the name, and "*" means all users.
    is_short = 1 <= len(name) <= USER_NAME_CHARS_MAX
    if not is_short or not name.isprintable() or "/" in name or name == "*":
        raise InvalidRequest(
            f"A user name must be 1 to {USER_NAME_CHARS_MAX} printable characters other than /,"
            " and must not be '*'."
        )


def check_policies(user: User) -> None:
    """Check the names, number and sizes of a user's policies, but not their content."""
    if len(user.policies) > POLICIES_PER_USER_MAX:
        raise InvalidRequest(f"A user can have at most {POLICIES_PER_USER_MAX} policies.")
    total_bytes = 0
    for name, text in user.policies.items():
        if _POLICY_NAME.match(name) is None:
            raise InvalidRequest("A policy name must be 1 to 128 letters, digits and _+=,.@-")
        size_bytes = len(text.encode())
        bytes_max = ACLS_BYTES_MAX if name == ACLS_POLICY else POLICY_BYTES_MAX
        if size_bytes > bytes_max:
            raise InvalidRequest(f"The policy {name} is longer than {bytes_max} bytes.")
        total_bytes += size_bytes
    if total_bytes > POLICIES_BYTES_MAX:
        raise InvalidRequest(
            f"The policies of a user can have at most {POLICIES_BYTES_MAX} bytes together."
        )


def check_key(key_id: str, secret: str) -> None:
    if _KEY_ID.match(key_id) is None:
        raise InvalidRequest("A key id must be 16 to 128 letters, digits and underscores.")
    if _SECRET.match(secret) is None:
        raise InvalidRequest("A secret must be 16 to 128 printable ASCII characters, no spaces.")


def check_scram(credential: ScramCredential) -> None:
    key_bytes = KEY_BYTES_BY_MECHANISM.get(credential.mechanism)
    if key_bytes is None:
        known = " or ".join(KEY_BYTES_BY_MECHANISM)
        raise InvalidRequest(f"The mechanism must be {known}.")
    if not SCRAM_ITERATIONS_MIN <= credential.iterations <= SCRAM_ITERATIONS_MAX:
        raise InvalidRequest(
            f"The number of iterations is {credential.iterations}; it must be"
            f" {SCRAM_ITERATIONS_MIN} to {SCRAM_ITERATIONS_MAX}."
        )
    if len(credential.salt) > SALT_BYTES_MAX:
        raise InvalidRequest(
            f"The salt has {len(credential.salt)} bytes; at most {SALT_BYTES_MAX} are allowed."
        )
    if len(credential.stored_key) != key_bytes or len(credential.server_key) != key_bytes:
        raise InvalidRequest(f"The keys of {credential.mechanism} must have {key_bytes} bytes.")


class IdentityMemory(WatchGroup):
    def __init__(self, store: Store, ring: KeyRing) -> None:
        self._store = store
        self._ring = ring
        self._tenants = Cache(
            store, TENANTS_PREFIX, decode=decode_tenant, on_change=self._on_tenant_change
        )
        self._users = Cache(store, USERS_PREFIX, decode=decode_user, on_change=self._on_user_change)
        self._keys = Cache(store, KEYS_PREFIX, decode=decode_key, on_change=self._on_key_change)
        self._scrams = Cache(
            store, SCRAM_PREFIX, decode=decode_scram, on_change=self._on_scram_change
        )
        self._acls = AclRules(store, on_rules_change=self._raise_epoch)
        super().__init__(self._tenants, self._users, self._keys, self._scrams, self._acls)
        # Views of the entries:
        self._by_account: dict[str, dict[str, User]] = {}
        self._live_keys: dict[str, AccessKey] = {}  # keys that their user's entry names
        # The number of users, by mechanism, account and iterations.
        self._iteration_counts: dict[str, dict[str, dict[int, int]]] = {}
        self.epoch = 1

    def tenant(self, account: str) -> Tenant | None:
        entry = self._tenants.get(tenant_key(account))
        return None if entry is None else entry.tenant

    def tenants(self) -> Sequence[Tenant]:
        found = [entry.tenant for entry in self._tenants.values()]
        found.sort(key=lambda tenant: tenant.account)
        return found

    def user(self, account: str, name: str) -> User | None:
        entry = self._users.get(user_key(account, name))
        return None if entry is None else entry.user

    def users(self, account: str) -> Sequence[User]:
        users = self._by_account.get(account, {})
        return [users[name] for name in sorted(users)]

    def key(self, key_id: str) -> AccessKey | None:
        return self._live_keys.get(key_id)

    def keys(self, account: str, user: str) -> Sequence[AccessKey]:
        entry = self._users.get(user_key(account, user))
        ids = () if entry is None else entry.key_ids
        return [self._live_keys[key_id] for key_id in ids if key_id in self._live_keys]

    def secret(self, key: AccessKey) -> bytes:
        return self._ring.unwrap(key.sealed_secret, context=key_key(key.key_id).encode())

    def scram(self, account: str, user: str, mechanism: str) -> ScramCredential | None:
        if mechanism not in self.mechanisms(account, user):
            return None
        at = scram_key(account, user, mechanism)
        sealed = self._scrams.get(at)
        return None if sealed is None else convert_scram(sealed, at, self._ring.unwrap)

    def mechanisms(self, account: str, user: str) -> Sequence[str]:
        entry = self._users.get(user_key(account, user))
        return () if entry is None else entry.mechanisms

    def iteration_counts(self, mechanism: str) -> Mapping[str, Mapping[int, int]]:
        return self._iteration_counts.get(mechanism, {})

    def acls(self, account: str) -> AclIndex | None:
        return self._acls.of(account)

    def _raise_epoch(self) -> None:
        self.epoch += 1

    def _on_tenant_change(
        self, _at: str, before: TenantEntry | None, after: TenantEntry | None
    ) -> None:
        if before is None or after is None or before.tenant != after.tenant:
            self.epoch += 1  # a change of the user count affects no permissions

    def _on_user_change(self, _at: str, before: UserEntry | None, after: UserEntry | None) -> None:
        self.epoch += 1
        if (entry := after or before) is not None:
            user = entry.user
            put_in(self._by_account, user.account, user.name, None if after is None else user)
        for entry in (before, after):
            for key_id in () if entry is None else entry.key_ids:
                self._look_at_key(key_id)

    def _on_key_change(self, _at: str, before: AccessKey | None, after: AccessKey | None) -> None:
        key = after or before
        assert key is not None
        self._look_at_key(key.key_id)
        if before is not None and after is not None:
            # A change of the time of the last use affects no permissions.
            after = msgspec.structs.replace(after, last_used_at_ms=before.last_used_at_ms)
        if before != after:
            self.epoch += 1

    def _on_scram_change(
        self, _at: str, before: ScramCredential | None, after: ScramCredential | None
    ) -> None:
        self.epoch += 1
        for credential, change in ((before, -1), (after, 1)):
            if credential is None or credential.iterations > SCRAM_ITERATIONS_MAX:
                continue
            by_account = self._iteration_counts.setdefault(credential.mechanism, {})
            counts = by_account.setdefault(credential.account, {})
            iterations = credential.iterations
            counts[iterations] = counts.get(iterations, 0) + change
            if not counts[iterations]:
                del counts[iterations]
            if not counts:
                del by_account[credential.account]

    def _look_at_key(self, key_id: str) -> None:
        """Add a key to the valid keys if the entry of its user names it, or else remove it."""
        key = self._keys.get(key_key(key_id))
        entry = None if key is None else self._users.get(user_key(key.account, key.user))
        if key is not None and entry is not None and key_id in entry.key_ids:
            self._live_keys[key_id] = key
        else:
            self._live_keys.pop(key_id, None)


def convert_scram(
    credential: ScramCredential, at: str, convert: Callable[..., bytes]
) -> ScramCredential:
    """Apply ``convert`` to the stored key and the server key, to encrypt or decrypt them."""
    return msgspec.structs.replace(
        credential,
        stored_key=convert(credential.stored_key, context=f"{at}#stored".encode()),
        server_key=convert(credential.server_key, context=f"{at}#server".encode()),
    )
