"""Group configs in the metadata store, where every node reads them from memory.

Below feature level 3 they are rows of the groups' coordinator, and the store has none. From that
level on coordinators move their rows to the store (``coordinator.py``), and nobody writes new ones.
"""

from collections.abc import Callable, Mapping

from penstock.cursor.group.codes import Code
from penstock.cursor.group.decision import Reply
from penstock.cursor.tenants import TenantRooms
from penstock.metadata.resource_configs import GROUP, Configs, Resource, ResourceConfigs
from penstock.model.errors import InvalidRequest, PenstockError, QuotaExceeded
from penstock.model.levels import GROUP_CONFIGS_STORED
from penstock.model.limits import RESOURCE_CONFIGS_MAX
from penstock.model.quotas import GROUP_CONFIGS
from penstock.model.tenancy import split_scoped


class GroupConfigs:
    def __init__(
        self, configs: ResourceConfigs, *, rooms: TenantRooms, level: Callable[[], int]
    ) -> None:
        """``level``: the feature level in force."""
        self._configs = configs
        self._rooms = rooms
        self._level = level

    @property
    def is_in_force(self) -> bool:
        return self._level() >= GROUP_CONFIGS_STORED

    def of(self, group_id: str) -> Configs:
        return self._configs.get(self._resource(group_id))

    async def change(self, group_id: str, changes: Mapping[str, str | None]) -> Reply:
        """None goes back to the default. Values have been checked."""
        resource = self._resource(group_id)
        is_new = any(text is not None for text in changes.values()) and not self.of(group_id)
        if is_new and not self._has_room(resource.account):
            return Reply(Code.GROUP_MAX_SIZE_REACHED)
        try:
            await self._configs.change(resource, changes)
        except QuotaExceeded:
            return Reply(Code.GROUP_MAX_SIZE_REACHED)
        except InvalidRequest:
            return Reply(Code.INVALID_GROUP_ID)
        except PenstockError:
            return Reply(Code.COORDINATOR_NOT_AVAILABLE)
        return Reply()

    async def take_over(self, group_id: str, configs: Configs) -> None:
        """From a row. What has been set in the store since wins. Raises PenstockError."""
        await self._configs.add_missing(self._resource(group_id), configs)

    def _has_room(self, account: str) -> bool:
        most = self._rooms.most(account, GROUP_CONFIGS, RESOURCE_CONFIGS_MAX)
        if len(self._configs.names(account, GROUP)) < most:
            return True
        self._rooms.note_refused(account, GROUP_CONFIGS)
        return False

    def _resource(self, group_id: str) -> Resource:
        account, name = split_scoped(group_id, own_account=self._rooms.own_account)
        return Resource(account, GROUP, name)
