"""Entries of tenants, users, keys and passwords in the store: their keys, valid names and maximum
numbers.

    /tenants/{account}                     the tenant, and its number of users
    /users/{account}/{name}                the user, with its key ids and mechanisms
    /keys/{key_id}                         the key, its secret sealed
    /scram/{account}/{user}/{mechanism}    the data to verify a password, sealed

The count in a tenant and the ids in a user make one compare-and-swap sufficient: to add a user
changes the tenant's entry, to add a key changes the user's. So two nodes at once cannot exceed a
bound, and nothing can be added to an entry that is being deleted. They also define which keys are
valid: a key that its user's entry does not name is invalid, even before a watch reports its end.

Values are JSON. Secrets are sealed with the entry's key as context: they cannot be opened in
another entry. Nothing here calls the store; ``identities.py`` does.
"""

import base64
import math
import re

import msgspec

from penstock.model.errors import InvalidRequest
from penstock.model.identity import AccessKey, Limits, Rate, ScramCredential, Tenant, User
from penstock.model.limits import KIB, SCRAM_ITERATIONS_MAX, SCRAM_ITERATIONS_MIN
from penstock.model.names import is_account

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
# Of all policies of a user. A text can double as JSON in JSON, and must still fit one entry.
POLICIES_BYTES_MAX = 200 * KIB
OPERATION_RATES_MAX = 100  # more than there are actions

KEY_ID_PREFIX = "PSAK"
KEY_ID_ENTROPY_BYTES = 10  # sixteen characters of base32
SECRET_ENTROPY_BYTES = 30  # forty characters of base64

KEY_BYTES_BY_MECHANISM = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
SALT_BYTES_MAX = 255  # chosen by clients; may be empty, as in Kafka
USER_NAME_CHARS_MAX = 200  # with the account before it, a login has 256

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
encode = msgspec.json.Encoder().encode


def new_key_id(entropy: bytes) -> str:
    assert len(entropy) == KEY_ID_ENTROPY_BYTES
    return KEY_ID_PREFIX + base64.b32encode(entropy).decode("ascii")


def new_secret(entropy: bytes) -> str:
    assert len(entropy) == SECRET_ENTROPY_BYTES
    return base64.urlsafe_b64encode(entropy).decode("ascii")


def new_account(entropy: bytes) -> str:
    """Return twelve digits, the first not 0, unlike the account of unauthenticated callers."""
    span = 900_000_000_000
    return str(100_000_000_000 + int.from_bytes(entropy, "big") % span)


# ── Validation ───────────────────────────────────────────────────────────────────────────────


def check_tenant(tenant: Tenant) -> None:
    if not is_account(tenant.account):
        raise InvalidRequest("An account must be 12 digits.")
    if _TENANT_NAME.match(tenant.name) is None:
        raise InvalidRequest(
            "A tenant name must be 1 to 64 letters, digits, spaces and ._- and begin with a letter"
            " or digit."
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
            raise InvalidRequest(f"The rate {name} has a burst but no value per second.")


def check_user_name(name: str) -> None:
    """Check a user name. Kafka allows any; here ``/`` separates the account from the name, and
    ``*`` means all users."""
    is_short = 1 <= len(name) <= USER_NAME_CHARS_MAX
    if not is_short or not name.isprintable() or "/" in name or name == "*":
        raise InvalidRequest(
            f"A user name must be 1 to {USER_NAME_CHARS_MAX} printable characters, without / and"
            " not just *."
        )


def check_policies(user: User) -> None:
    """Check names, number and sizes of a user's policies, but not their content."""
    if len(user.policies) > POLICIES_PER_USER_MAX:
        raise InvalidRequest(f"A user has at most {POLICIES_PER_USER_MAX} policies.")
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
            f"The policies of a user have at most {POLICIES_BYTES_MAX} bytes together."
        )


def check_key(key_id: str, secret: str) -> None:
    if _KEY_ID.match(key_id) is None:
        raise InvalidRequest("A key id must be 16 to 128 letters, digits and _")
    if _SECRET.match(secret) is None:
        raise InvalidRequest("A secret must be 16 to 128 printable ASCII characters, no spaces.")


def check_scram(credential: ScramCredential) -> None:
    key_bytes = KEY_BYTES_BY_MECHANISM.get(credential.mechanism)
    if key_bytes is None:
        known = " or ".join(KEY_BYTES_BY_MECHANISM)
        raise InvalidRequest(f"The mechanism must be {known}.")
    if not SCRAM_ITERATIONS_MIN <= credential.iterations <= SCRAM_ITERATIONS_MAX:
        raise InvalidRequest(
            f"iterations is {credential.iterations}; {SCRAM_ITERATIONS_MIN} to"
            f" {SCRAM_ITERATIONS_MAX} are allowed."
        )
    if len(credential.salt) > SALT_BYTES_MAX:
        raise InvalidRequest(
            f"The salt has {len(credential.salt)} bytes; at most {SALT_BYTES_MAX} are allowed."
        )
    if len(credential.stored_key) != key_bytes or len(credential.server_key) != key_bytes:
        raise InvalidRequest(f"The keys of {credential.mechanism} must have {key_bytes} bytes.")
