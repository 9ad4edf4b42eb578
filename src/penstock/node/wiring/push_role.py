"""The push role of a node: SNS subscriptions."""

from collections.abc import Callable

from penstock.metadata.subscriptions import StoredSubscriptions
from penstock.node.metadata.metadata_link import MetadataLink
from penstock.node.process.node_setup import NodeSetup
from penstock.node.wiring.security import NodeSecurity


class PushRole:
    def __init__(
        self,
        setup: NodeSetup,
        metadata: MetadataLink,
        security: NodeSecurity,
        *,
        level: Callable[[], int],  # the feature level in force
    ) -> None:
        self.level = level
        self.subscriptions = StoredSubscriptions(
            metadata.store,
            security.identities,
            own_account=setup.config.node.account,
            level=level,
        )

    async def start(self) -> None:
        await self.subscriptions.start()

    async def stop(self) -> None:
        await self.subscriptions.stop()

    @property
    def trouble(self) -> str | None:
        return self.subscriptions.trouble
