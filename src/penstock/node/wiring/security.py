"""The key ring, identities, data keys and delegation tokens of a node, started in this order, as
each needs the one before."""

import asyncio
import logging
import os
from collections.abc import Iterator

from penstock.frontend.encryption.sealing import Sealing
from penstock.metadata.security.data_keys import DataKeys
from penstock.metadata.security.delegation_tokens import DelegationTokens
from penstock.metadata.security.identities import NewKey, Resealed, StoredIdentities
from penstock.model.errors import Conflict, PenstockError
from penstock.model.identity import Tenant
from penstock.model.troubles import Trouble, no_operator
from penstock.node.keys.bootstrap import (
    KEY_ID_VARIABLE,
    bootstrap,
    find_operator_key,
    is_operator_key,
)
from penstock.node.keys.bootstrap import TENANT as DEFAULT_TENANT
from penstock.node.keys.keyring import (
    KMS_NAME,
    MASTER_NAME,
    MASTER_VARIABLE,
    KeyRingUnusable,
    MasterKeyRing,
    start_key_ring,
)
from penstock.node.metadata.metadata_link import MetadataLink
from penstock.node.process.node_setup import NodeSetup

log_ = logging.getLogger(__name__)

FLUSH_SECONDS = 30.0


class NodeSecurity:
    def __init__(self, setup: NodeSetup, metadata: MetadataLink, *, is_auth_on: bool) -> None:
        self._setup = setup
        self._metadata = metadata
        self._is_auth_on = is_auth_on
        self.root_key: NewKey | None = None  # created by this start, shown once
        self._operator_key: str | None = None  # an active key of an operator
        self._operator_epoch = -1  # of the identities when they were last searched

    async def start(self) -> None:
        setup = self._setup
        self._check_shared_master()
        self.ring = await start_key_ring(setup.config.keys, setup.folder.path, env=os.environ)
        await self._start_identities(self.ring)
        await self._start_data_keys(self.ring)
        secret = self.ring.derive(b"kafka delegation tokens")
        self.tokens = DelegationTokens(self._metadata.store, secret)
        await self.tokens.start()
        self.sealing = Sealing(
            self.data_keys,
            clock=setup.clock,
            entropy=setup.entropy,
            meter=setup.meter,
            is_default=setup.config.keys.encrypt_by_default,
        )

    async def stop(self) -> None:
        try:
            await self.identities.flush()
        except PenstockError as error:  # an unreachable metadata service must not block the stop
            log_.warning("last uses of keys not stored", extra={"reason": str(error)})
        await self.tokens.stop()
        await self.identities.stop()
        await self.data_keys.stop()

    @property
    def trouble(self) -> str | None:
        """Why identities and keys in memory may be out of date."""
        return self.data_keys.trouble or self.identities.trouble or self.tokens.trouble

    def troubles(self) -> Iterator[Trouble]:
        if self._is_auth_on and not self._has_operator():
            yield no_operator()

    def _has_operator(self) -> bool:
        """Called once a second: users are searched only if they have changed."""
        identities = self.identities
        if self._operator_key is not None and is_operator_key(identities, self._operator_key):
            return True
        if self._operator_epoch != identities.epoch:
            self._operator_epoch = identities.epoch
            self._operator_key = find_operator_key(identities)
        return self._operator_key is not None

    async def flush(self) -> None:
        """Store periodically when keys were last used, and delete expired delegation tokens."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                await self.identities.flush()
            except PenstockError as error:
                log_.warning("last uses of keys not stored", extra={"reason": str(error)})
            try:
                await self.tokens.sweep(now_ms=self._setup.clock.wall_ms())
            except PenstockError as error:
                log_.warning("expired delegation tokens not deleted", extra={"reason": str(error)})

    def _check_shared_master(self) -> None:
        """Check that this node does not create a master key: it must be the other nodes' key."""
        keys, folder = self._setup.config.keys, self._setup.folder.path
        made = folder / (KMS_NAME if keys.kms_command else MASTER_NAME)
        is_given = keys.master_file or os.environ.get(MASTER_VARIABLE) or made.exists()
        if self._metadata.is_remote and not is_given:
            raise KeyRingUnusable(
                "all nodes of one metadata service share a master key: set keys.master_file or"
                f" {MASTER_VARIABLE}, or copy {made.name} of another node into the data folder"
            )

    async def _start_identities(self, ring: MasterKeyRing) -> None:
        setup, config = self._setup, self._setup.config
        identities = StoredIdentities(self._metadata.store, ring, entropy=setup.entropy)
        self.identities = identities
        await identities.start()
        resealed = await identities.reseal(ring.rewrap)
        _check_readable(resealed, "of the secrets in the store", "sealed")
        account, now_ms = config.node.account, setup.clock.wall_ms()
        if identities.tenant(account) is None:
            # Users can be created before authentication is turned on.
            try:
                await identities.create_tenant(Tenant(account, DEFAULT_TENANT, now_ms))
            except Conflict:
                pass  # created by another node at the same moment
        if self._is_auth_on:
            made = await bootstrap(identities, account=account, env=os.environ, now_ms=now_ms)
            if KEY_ID_VARIABLE not in os.environ:
                self.root_key = made

    async def _start_data_keys(self, ring: MasterKeyRing) -> None:
        setup = self._setup
        self.data_keys = DataKeys(
            self._metadata.store,
            ring,
            self._metadata.topics,
            clock=setup.clock,
            entropy=setup.entropy,
        )
        await self.data_keys.start()
        resealed = await self.data_keys.reseal(ring.rewrap)
        _check_readable(resealed, "data keys in the store", "wrapped")


def _check_readable(resealed: Resealed, what: str, done: str) -> None:
    if resealed.unreadable:
        raise KeyRingUnusable(
            f"the master key does not match {resealed.unreadable} {what}: set the key they were"
            f" {done} with in keys.master_file or keys.old_master_files"
        )
