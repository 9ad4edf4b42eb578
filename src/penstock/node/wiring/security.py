"""The key ring, identities, data keys and delegation tokens of a node, started in this order.

If authentication is on and no operator has an active access key, the start creates a tenant, an
operator called root and an access key, so that users and keys can be managed. The environment may
provide this key: ``PENSTOCK_ROOT_KEY_ID``, and ``PENSTOCK_ROOT_SECRET_FILE``, the path of a file
with the secret. Otherwise the key is random, and is printed once."""

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from penstock.frontend.encryption.sealing import Sealing
from penstock.metadata.security.acl_rules import DelegationTokens
from penstock.metadata.security.data_keys import DataKeys
from penstock.metadata.security.identities import NewKey, Resealed, StoredIdentities
from penstock.metadata.security.identity_entries import KEYS_PER_USER_MAX
from penstock.model.errors import USAGE, Conflict, PenstockError, SetupError
from penstock.model.identity import ADMIN_POLICY, KeyStatus, Tenant, User
from penstock.model.troubles import NO_OPERATOR, Trouble
from penstock.node.keys import keyring
from penstock.node.metadata.metadata_link import MetadataLink
from penstock.node.process.node_setup import NodeSetup

KEY_ID_VARIABLE = "PENSTOCK_ROOT_KEY_ID"
SECRET_FILE_VARIABLE = "PENSTOCK_ROOT_SECRET_FILE"  # noqa: S105 - the name of a variable
TENANT = "default"
ROOT = "root"
POLICY = "admin"
SECRET_BYTES_MAX = 4_096
FLUSH_SECONDS = 30.0
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
    """Create an access key for an operator, unless an operator already has an active key."""
    if find_operator_key(identities) is not None:
        return None
    key_id, secret = _given(env)
    log_.warning("no operator has an access key: creating one")
    with suppress(Conflict):  # it exists already
        await identities.create_tenant(Tenant(account, TENANT, now_ms))
    name = _name(identities, account)
    if identities.user(account, name) is None:
        root = User(account, name, now_ms, is_operator=True, policies={POLICY: ADMIN_POLICY})
        with suppress(Conflict):  # created by another node at the same moment; each creates a key
            await identities.create_user(root)
    try:
        return await identities.create_key(
            account, name, now_ms=now_ms, key_id=key_id, secret=secret
        )
    except Conflict as error:  # the given key exists, and is disabled or of another user
        log_.warning("creating an access key for root failed", extra={"reason": str(error)})
        return None


def _name(identities: StoredIdentities, account: str) -> str:
    """Return root, or root-2 and so on if the user root is not an operator or has too many keys."""
    for number in range(1, NAMES_MAX):
        name = ROOT if number == 1 else f"{ROOT}-{number}"
        user = identities.user(account, name)
        if user is None:
            return name
        if user.is_operator and len(identities.keys(account, name)) < KEYS_PER_USER_MAX:
            return name
    return ROOT


def find_operator_key(identities: StoredIdentities) -> str | None:
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


class NodeSecurity:
    def __init__(self, setup: NodeSetup, metadata: MetadataLink) -> None:
        self._setup = setup
        self._metadata = metadata
        self.root_key: NewKey | None = None  # created by this start, shown once
        self._operator_key: str | None = None  # an active key of an operator
        self._operator_epoch = -1  # of the identities when they were last searched

    async def start(self) -> None:
        setup = self._setup
        self._check_shared_master()
        self.ring = await keyring.start_key_ring(
            setup.config.keys, setup.folder.path, env=os.environ
        )
        await self._start_identities()
        store, topics, entropy = self._metadata.store, self._metadata.topics, setup.entropy
        self.data_keys = DataKeys(store, self.ring, topics, clock=setup.clock, entropy=entropy)
        await self.data_keys.start()
        resealed = await self.data_keys.reseal(self.ring.rewrap)
        check_readable(resealed, "data keys in the store", "encrypted")
        secret = self.ring.derive(b"kafka delegation tokens")
        self.tokens = DelegationTokens(store, secret)
        await self.tokens.start()
        self.sealing = Sealing(
            self.data_keys,
            clock=setup.clock,
            entropy=setup.entropy,
            meter=setup.meter,
            is_default=setup.config.keys.encrypt_by_default,
        )

    async def stop(self) -> None:
        await self._store_uses()  # an unreachable metadata service must not block the stop
        await self.tokens.stop()
        await self.identities.stop()
        await self.data_keys.stop()

    @property
    def trouble(self) -> str | None:
        return self.data_keys.trouble or self.identities.trouble or self.tokens.trouble

    def troubles(self) -> Iterator[Trouble]:
        if self._setup.is_auth_on and not self._has_operator():
            yield NO_OPERATOR

    def _has_operator(self) -> bool:
        # Called once a second: users are searched only if they have changed.
        identities = self.identities
        if self._operator_key is not None and is_operator_key(identities, self._operator_key):
            return True
        if self._operator_epoch != identities.epoch:
            self._operator_epoch = identities.epoch
            self._operator_key = find_operator_key(identities)
        return self._operator_key is not None

    async def flush(self) -> None:
        """Periodically store the last use of access keys, and delete expired delegation tokens."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self._store_uses()
            try:
                await self.tokens.sweep(now_ms=self._setup.clock.wall_ms())
            except PenstockError as error:
                log_.warning("deleting expired tokens failed", extra={"reason": str(error)})

    async def _store_uses(self) -> None:
        try:
            await self.identities.flush()
        except PenstockError as error:
            log_.warning("storing the last use of access keys failed", extra={"reason": str(error)})

    def _check_shared_master(self) -> None:
        """Raise KeyRingUnusable if this node shares the metadata, but has no master key yet."""
        keys, folder = self._setup.config.keys, self._setup.folder.path
        made = folder / (keyring.KMS_NAME if keys.kms_command else keyring.MASTER_NAME)
        is_given = keys.master_file or os.environ.get(keyring.MASTER_VARIABLE) or made.exists()
        if self._metadata.is_remote and not is_given:
            raise keyring.KeyRingUnusable(
                "all nodes with the same metadata must share a master key: set keys.master_file or"
                f" {keyring.MASTER_VARIABLE}, or copy {made.name} of another node into the data"
                " folder"
            )

    async def _start_identities(self) -> None:
        setup, config = self._setup, self._setup.config
        identities = StoredIdentities(self._metadata.store, self.ring, entropy=setup.entropy)
        self.identities = identities
        await identities.start()
        resealed = await identities.reseal(self.ring.rewrap)
        check_readable(resealed, "secrets in the store", "encrypted")
        account, now_ms = config.node.account, setup.clock.wall_ms()
        if identities.tenant(account) is None:
            # Users can be created before authentication is turned on.
            with suppress(Conflict):  # created by another node at the same moment
                await identities.create_tenant(Tenant(account, TENANT, now_ms))
        if self._setup.is_auth_on:
            made = await bootstrap(identities, account=account, env=os.environ, now_ms=now_ms)
            if KEY_ID_VARIABLE not in os.environ:
                self.root_key = made


def check_readable(resealed: Resealed, what: str, done: str) -> None:
    if resealed.unreadable:
        raise keyring.KeyRingUnusable(
            f"the master key cannot decrypt {resealed.unreadable} {what}: set the key with which"
            f" they were {done}, in keys.master_file or keys.old_master_files"
        )
