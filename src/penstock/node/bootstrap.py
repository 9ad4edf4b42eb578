"""The first user. With authentication on and nobody in the store, nobody could ever get in: the
first start makes a tenant, an operator called root and one access key.

Whoever deploys by machine brings the key along (``PENSTOCK_ROOT_KEY_ID`` and the path of a file in
``PENSTOCK_ROOT_SECRET_FILE``); otherwise it is drawn here, and the caller shows it once.
"""

from collections.abc import Mapping
from pathlib import Path

from penstock.metadata.identities import NewKey, StoredIdentities
from penstock.model.errors import Conflict, PenstockError
from penstock.model.identity import ADMIN_POLICY, Tenant, User

KEY_ID_VARIABLE = "PENSTOCK_ROOT_KEY_ID"
SECRET_FILE_VARIABLE = "PENSTOCK_ROOT_SECRET_FILE"  # noqa: S105 - the name of a variable
TENANT = "default"
ROOT = "root"
POLICY = "admin"
SECRET_BYTES_MAX = 4_096


class BootstrapImpossible(PenstockError):
    """One line says which of the two variables is wrong, and how."""


async def bootstrap(
    identities: StoredIdentities, *, account: str, env: Mapping[str, str], now_ms: int
) -> NewKey | None:
    """None when there is somebody already. A start that was cut short between the steps is gone on
    with: a root who is alone and has no key is as good as nobody."""
    if _somebody(identities, account):
        return None
    key_id, secret = _given(env)
    try:
        await identities.create_tenant(Tenant(account, TENANT, now_ms))
    except Conflict:
        pass  # made before users were, or by a start that was cut short
    if identities.user(account, ROOT) is None:
        root = User(account, ROOT, now_ms, is_operator=True, policies={POLICY: ADMIN_POLICY})
        try:
            await identities.create_user(root)
        except Conflict:
            pass  # by another node that starts at the same moment; each gets a key
    return await identities.create_key(account, ROOT, now_ms=now_ms, key_id=key_id, secret=secret)


def _somebody(identities: StoredIdentities, account: str) -> bool:
    everybody = [
        (user.account, user.name)
        for tenant in identities.tenants()
        for user in identities.users(tenant.account)
    ]
    is_root_alone = everybody == [(account, ROOT)]
    return bool(everybody) and not (is_root_alone and not identities.keys(account, ROOT))


def _given(env: Mapping[str, str]) -> tuple[str, str]:
    """Both, or neither as two empty texts."""
    key_id, file = env.get(KEY_ID_VARIABLE, ""), env.get(SECRET_FILE_VARIABLE, "")
    if bool(key_id) != bool(file):
        given, other = KEY_ID_VARIABLE, SECRET_FILE_VARIABLE
        if not key_id:
            given, other = other, given
        raise BootstrapImpossible(f"{given} is set, and {other} is not")
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
        raise BootstrapImpossible(f"{SECRET_FILE_VARIABLE}: {file} holds no secret")
    return key_id, text
