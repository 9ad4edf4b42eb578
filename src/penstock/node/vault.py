"""Who may do what, and what keeps it secret: the key ring, identities, data keys and delegation
tokens of a node, made and started in this order, for each needs the one before."""

import asyncio
import logging
import os
from collections.abc import Iterator

from penstock.frontend.sealing import Sealing
from penstock.metadata.data_keys import DataKeys
from penstock.metadata.delegation_tokens import DelegationTokens
from penstock.metadata.identities import NewKey, Resealed, StoredIdentities
from penstock.model.errors import Conflict, PenstockError
from penstock.model.identity import Tenant
from penstock.model.troubles import Trouble, no_operator
from penstock.node.basis import Basis
from penstock.node.bootstrap import (
    KEY_ID_VARIABLE,
    bootstrap,
    find_operator_key,
    is_operator_key,
)
from penstock.node.bootstrap import TENANT as DEFAULT_TENANT
from penstock.node.keyring import (
    KMS_NAME,
    MASTER_NAME,
    MASTER_VARIABLE,
    KeyRingUnusable,
    MasterKeyRing,
    start_key_ring,
)
from penstock.node.metadata_link import MetadataLink

log_ = logging.getLogger(__name__)

FLUSH_SECONDS = 30.0


class Vault:
    def __init__(self, basis: Basis, metadata: MetadataLink, *, is_auth_on: bool) -> None:
        self._basis = basis
        self._metadata = metadata
        self._is_auth_on = is_auth_on
        self.root_key: NewKey | None = None  # made by this start, and shown once
        self._operator_key: str | None = None  # an active key of an operator
        self._operator_epoch = -1  # of the identities that were searched for it

    async def start(self) -> None:
        basis = self._basis
        self._check_shared_master()
        self.ring = await start_key_ring(basis.config.keys, basis.folder.path, env=os.environ)
        await self._start_identities(self.ring)
        await self._start_data_keys(self.ring)
        secret = self.ring.derive(b"kafka delegation tokens")
        self.tokens = DelegationTokens(self._metadata.store, secret)
        await self.tokens.start()
        self.sealing = Sealing(
            self.data_keys,
            clock=basis.clock,
            entropy=basis.entropy,
            meter=basis.meter,
            is_default=basis.config.keys.encrypt_by_default,
        )

    async def stop(self) -> None:
        try:
            await self.identities.flush()
        except PenstockError as error:  # a metadata service that is away must not keep us
            log_.warning("last uses of keys not written", extra={"reason": str(error)})
        await self.tokens.stop()
        await self.identities.stop()
        await self.data_keys.stop()

    @property
    def trouble(self) -> str | None:
        """Why what this node knows of identities and keys may be old."""
        return self.data_keys.trouble or self.identities.trouble or self.tokens.trouble

    def troubles(self) -> Iterator[Trouble]:
        if self._is_auth_on and not self._has_operator():
            yield no_operator()

    def _has_operator(self) -> bool:
        """Asked once a second: users are searched only if they have changed."""
        identities = self.identities
        if self._operator_key is not None and is_operator_key(identities, self._operator_key):
            return True
        if self._operator_epoch != identities.epoch:
            self._operator_epoch = identities.epoch
            self._operator_key = find_operator_key(identities)
        return self._operator_key is not None

    async def flush(self) -> None:
        """Write when keys were last used, and delete expired delegation tokens, again and again."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                await self.identities.flush()
            except PenstockError as error:
                log_.warning("last uses of keys not written", extra={"reason": str(error)})
            try:
                await self.tokens.sweep(now_ms=self._basis.clock.wall_ms())
            except PenstockError as error:
                log_.warning("expired delegation tokens not deleted", extra={"reason": str(error)})

    def _check_shared_master(self) -> None:
        """What one node seals the others must open: none may draw a key for itself."""
        keys, folder = self._basis.config.keys, self._basis.folder.path
        made = folder / (KMS_NAME if keys.kms_command else MASTER_NAME)
        is_given = keys.master_file or os.environ.get(MASTER_VARIABLE) or made.exists()
        if self._metadata.is_remote and not is_given:
            raise KeyRingUnusable(
                "all nodes of one metadata service share a master key: give it in keys.master_file"
                f" or {MASTER_VARIABLE}, or copy {made.name} of another node into the data folder"
            )

    async def _start_identities(self, ring: MasterKeyRing) -> None:
        basis, config = self._basis, self._basis.config
        identities = StoredIdentities(self._metadata.store, ring, entropy=basis.entropy)
        self.identities = identities
        await identities.start()
        resealed = await identities.reseal(ring.rewrap)
        _check_readable(resealed, "of the secrets in the store", "sealed")
        account, now_ms = config.node.account, basis.clock.wall_ms()
        if identities.tenant(account) is None:
            # Users can be made before anybody is asked for a key.
            try:
                await identities.create_tenant(Tenant(account, DEFAULT_TENANT, now_ms))
            except Conflict:
                pass  # by another node that starts at the same moment
        if self._is_auth_on:
            made = await bootstrap(identities, account=account, env=os.environ, now_ms=now_ms)
            if KEY_ID_VARIABLE not in os.environ:
                self.root_key = made

    async def _start_data_keys(self, ring: MasterKeyRing) -> None:
        """Under the present master key whatever they were wrapped with before."""
        basis = self._basis
        self.data_keys = DataKeys(
            self._metadata.store,
            ring,
            self._metadata.topics,
            clock=basis.clock,
            entropy=basis.entropy,
        )
        await self.data_keys.start()
        resealed = await self.data_keys.reseal(ring.rewrap)
        _check_readable(resealed, "data keys in the store", "wrapped")


def _check_readable(resealed: Resealed, what: str, done: str) -> None:
    if resealed.unreadable:
        raise KeyRingUnusable(
            f"the master key does not fit {resealed.unreadable} {what}: give the one they were"
            f" {done} with in keys.master_file or keys.old_master_files"
        )
