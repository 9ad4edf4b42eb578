"""Creation of the first operator. If authentication is on and no operator has an active access key,
users and keys could not be managed: then the start creates a tenant, an operator called root and an
access key, even if there are other users.

Automated deployments provide the key (``PENSTOCK_ROOT_KEY_ID`` and the path of a file in
``PENSTOCK_ROOT_SECRET_FILE``); otherwise it is random, and the caller shows it once.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from penstock.metadata.security.identities import NewKey, StoredIdentities
from penstock.metadata.security.identity_entries import KEYS_PER_USER_MAX
from penstock.model.errors import USAGE, Conflict, SetupError
from penstock.model.identity import ADMIN_POLICY, KeyStatus, Tenant, User

KEY_ID_VARIABLE = "PENSTOCK_ROOT_KEY_ID"
SECRET_FILE_VARIABLE = "PENSTOCK_ROOT_SECRET_FILE"  # noqa: S105 - the name of a variable
TENANT = "default"
ROOT = "root"
POLICY = "admin"
SECRET_BYTES_MAX = 4_096
NAMES_MAX = 100  # user names tried for the new key

log_ = logging.getLogger(__name__)


class BootstrapImpossible(SetupError):
    def __init__(self, why: str) -> None:
        super().__init__(why, what="the first access key cannot be created", code=USAGE)
        self.do = (
            f"set both {KEY_ID_VARIABLE} and {SECRET_FILE_VARIABLE}, or neither: then a"
            " random key is printed once"
        )


async def bootstrap(
    identities: StoredIdentities, *, account: str, env: Mapping[str, str], now_ms: int
) -> NewKey | None:
    """Give an operator an access key if no operator has an active one. Returns None if there was
    one, or if no key could be made. Raises BootstrapImpossible."""
    if find_operator_key(identities) is not None:
        return None
    key_id, secret = _given(env)
    log_.warning("no operator has an access key: creating one")
    try:
        await identities.create_tenant(Tenant(account, TENANT, now_ms))
    except Conflict:
        pass  # it exists already
    name = _name(identities, account)
    if identities.user(account, name) is None:
        root = User(account, name, now_ms, is_operator=True, policies={POLICY: ADMIN_POLICY})
        try:
            await identities.create_user(root)
        except Conflict:
            pass  # created by another node at the same moment; each creates a key
    try:
        return await identities.create_key(
            account, name, now_ms=now_ms, key_id=key_id, secret=secret
        )
    except Conflict as error:  # the given key exists, and is disabled or of another user
        log_.warning("no access key created for root", extra={"reason": str(error)})
        return None


def _name(identities: StoredIdentities, account: str) -> str:
    """Return root, or root-2 and so on if root is not an operator or has all keys it may have:
    rights of an existing user are not changed here, nor are keys deleted."""
    for number in range(1, NAMES_MAX):
        name = ROOT if number == 1 else f"{ROOT}-{number}"
        user = identities.user(account, name)
        if user is None:
            return name
        if user.is_operator and len(identities.keys(account, name)) < KEYS_PER_USER_MAX:
            return name
    return ROOT


def find_operator_key(identities: StoredIdentities) -> str | None:
    """Return the id of an active access key of an operator."""
    for tenant in identities.tenants():
        for user in identities.users(tenant.account):
            if user.is_operator:
                for key in identities.keys(user.account, user.name):
                    if key.status is KeyStatus.ACTIVE:
                        return key.key_id
    return None


def is_operator_key(identities: StoredIdentities, key_id: str) -> bool:
    key = identities.key(key_id)
    if key is None or key.status is not KeyStatus.ACTIVE:
        return False
    user = identities.user(key.account, key.user)
    return user is not None and user.is_operator


def _given(env: Mapping[str, str]) -> tuple[str, str]:
    """Return key id and secret from the environment, or two empty texts."""
    key_id, file = env.get(KEY_ID_VARIABLE, ""), env.get(SECRET_FILE_VARIABLE, "")
    if bool(key_id) != bool(file):
        given, other = KEY_ID_VARIABLE, SECRET_FILE_VARIABLE
        if not key_id:
            given, other = other, given
        raise BootstrapImpossible(f"{given} is set, but {other} is not")
    if not file:
        return "", ""
    try:
        with Path(file).open("rb") as secret:
            text = secret.read(SECRET_BYTES_MAX).decode("ascii").strip()
    except OSError as error:
        raise BootstrapImpossible(
            f"{SECRET_FILE_VARIABLE}: {file} cannot be read: {error.strerror}"
        ) from error
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise BootstrapImpossible(f"{SECRET_FILE_VARIABLE}: {file} contains no secret")
    return key_id, text
