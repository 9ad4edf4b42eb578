"""Group configs in the metadata store, where every node reads them from memory. Below feature level
3 they are rows of the groups' coordinator, which moves them to the store from that level on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.cursor.groups.decision import Reply
from penstock.cursor.tenants import CoordinatorUsage
from penstock.metadata.topics.resource_configs import GROUP, Configs, Resource, ResourceConfigs
from penstock.model.errors import InvalidRequest, PenstockError, QuotaExceeded
from penstock.model.levels import GROUP_CONFIGS_STORED
from penstock.model.limits import RESOURCE_CONFIGS_MAX
from penstock.model.names import split_scoped
from penstock.model.quotas import GROUP_CONFIGS
from penstock.wire.kafka.faults import ErrorCode


@dataclass
class GroupConfigs:
    configs: ResourceConfigs
    usage: CoordinatorUsage
    level: Callable[[], int]  # the feature level in force

    @property
    def is_in_force(self) -> bool:
        return self.level() >= GROUP_CONFIGS_STORED

    def of(self, group_id: str) -> Configs:
        return self.configs.get(self._resource(group_id))

    async def change(self, group_id: str, changes: Mapping[str, str | None]) -> Reply:
        """Change configs, whose values were checked. None: back to the default."""
        resource = self._resource(group_id)
        is_new = any(text is not None for text in changes.values()) and not self.of(group_id)
        if is_new and not self._has_room(resource.account):
            return Reply(ErrorCode.GROUP_MAX_SIZE_REACHED)
        try:
            await self.configs.change(resource, changes)
        except QuotaExceeded:
            return Reply(ErrorCode.GROUP_MAX_SIZE_REACHED)
        except InvalidRequest:
            return Reply(ErrorCode.INVALID_GROUP_ID)
        except PenstockError:
            return Reply(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return Reply()

    async def take_over(self, group_id: str, configs: Configs) -> None:
        """Store the configs of a row; values set since then win. Raises PenstockError."""
        await self.configs.add_missing(self._resource(group_id), configs)

    def _has_room(self, account: str) -> bool:
        most = self.usage.most(account, GROUP_CONFIGS, RESOURCE_CONFIGS_MAX)
        if len(self.configs.names(account, GROUP)) < most:
            return True
        self.usage.note_refused(account, GROUP_CONFIGS)
        return False

    def _resource(self, group_id: str) -> Resource:
        account, name = split_scoped(group_id, own_account=self.usage.own_account)
        return Resource(account, GROUP, name)
