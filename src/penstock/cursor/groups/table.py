"""A table that finds, creates and drops the groups of one coordinator partition. It is rebuilt
from the rows in the partition's log. A group without rows exists only while a client is joining.

Below feature level 3, the configs of groups are rows in the log. From level 3 on, they are in the
metadata store, and ``broker/coordination/group_coordinator.py`` moves the remaining rows there."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.cursor.deadlines import Deadlines
from penstock.cursor.groups.assigned import AssignedGroup
from penstock.cursor.groups.classic.classic import ClassicGroup
from penstock.cursor.groups.consumer import ConsumerGroup
from penstock.cursor.groups.decision import Decision
from penstock.cursor.groups.offsets import Fences, Offsets, OpenGroups
from penstock.cursor.groups.records import CODEC, ConfigsValue, RowKind
from penstock.cursor.groups.settings import GROUP_ID_CHARS_MAX, GroupSettings
from penstock.cursor.groups.share import ShareGroup
from penstock.cursor.groups.streams.streams import StreamsGroup
from penstock.cursor.tenants import NO_QUOTAS, PartitionUsage
from penstock.model.quotas import GROUP_CONFIGS, GROUPS
from penstock.wire.kafka.faults import ErrorCode

Members: TypeAlias = ClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup


@dataclass(slots=True)
class Group:
    id: str
    offsets: Offsets
    members: Members

    @property
    def is_blank(self) -> bool:
        return not len(self.offsets) and self.members.is_blank

    @property
    def is_idle_classic(self) -> bool:
        """Whether the group may become a consumer group or a streams group."""
        return isinstance(self.members, ClassicGroup) and self.members.is_idle


class GroupTable:
    def __init__(
        self,
        settings: GroupSettings,
        usage: PartitionUsage | None = None,
        *,
        stored: Callable[[str], Mapping[str, str]] | None = None,
    ) -> None:
        """Create a table. ``stored`` returns the configs of a group in the metadata store."""
        self._settings = settings
        self._stored = stored
        self._usage = usage or PartitionUsage(NO_QUOTAS)
        self._groups: dict[str, Group] = {}
        self._fences = Fences()
        self._configs: dict[str, ConfigsValue] = {}  # by group id; the groups may not exist yet
        self._open_groups: OpenGroups = {}
        self._wakes: Deadlines[str] = Deadlines()

    def next_wake_ms(self) -> int | None:
        """Return the time of the monotonic clock at which to call ``tick``, or None if never."""
        return self._wakes.next_ms()

    def replay(self, key: bytes, value: bytes | None, *, now_ms: int) -> None:
        """Apply a row of the log. Raises ValueError if the row cannot be decoded."""
        kind, fields, body = CODEC.decode(key, value)
        if kind in (RowKind.FENCE, RowKind.CONFIGS):
            (self._fences.apply if kind == RowKind.FENCE else self._apply_configs)(fields[0], body)
            return
        if body is None and fields[0] not in self._groups:
            return
        group = self._groups.get(fields[0]) or self._add(fields[0])
        if kind == RowKind.OFFSET:
            group.offsets.apply_offset(fields[1:], body)
        elif kind == RowKind.PENDING:
            group.offsets.apply_pending(fields[1], fields[2:], body)
        else:
            members_type = _MEMBERS[kind]
            if body is not None and not isinstance(group.members, members_type):
                group.members = members_type(group.id, self._settings)
            members = group.members
            if isinstance(members, members_type):
                if isinstance(members, ClassicGroup):
                    members.apply(body, now_ms=now_ms)
                else:
                    members.apply(kind, fields, body)
                # The row of the group itself is deleted after all other rows of the group.
                if body is None and kind in _GROUP_ROWS:
                    group.members = ClassicGroup(group.id, self._settings)
        if group.is_blank:
            self._remove(group)

    def loaded(self, decision: Decision) -> None:
        for group in self._groups.values():
            if isinstance(group.members, AssignedGroup):
                group.members.set_times(self.configs(group.id))
                group.members.arm(decision.now_ms)
            self._arm(group)

    def configs(self, group_id: str) -> Mapping[str, str]:
        """Return a group's configs. Values in the metadata store override values in the log."""
        value = self._configs.get(group_id)
        rows = {} if value is None else value.configs
        stored = {} if self._stored is None else self._stored(group_id)
        return {**rows, **stored} if rows and stored else rows or stored

    def configs_rows(self) -> dict[str, Mapping[str, str]]:
        """Return the configs that are stored in the coordinator's log, by group id."""
        return {group_id: value.configs for group_id, value in self._configs.items()}

    def repeat_configs(self, decision: Decision) -> None:
        """Append the configs to the log again. Only the leader of the log can commit them."""
        for group_id, value in self._configs.items():
            self._put_configs(group_id, value, decision)

    def drop_configs(self, group_ids: Iterable[str], decision: Decision) -> None:
        for group_id in group_ids:
            self._put_configs(group_id, None, decision)

    def _put_configs(self, group_id: str, value: ConfigsValue | None, decision: Decision) -> None:
        decision.rows.append(CODEC.encode(RowKind.CONFIGS, (group_id,), value))
        self._apply_configs(group_id, value)

    def _apply_configs(self, group_id: str, value: ConfigsValue | None) -> None:
        change = (value is not None) - (group_id in self._configs)
        self._usage.add(self._usage.account_of(group_id), GROUP_CONFIGS, change)
        if value is not None:
            self._configs[group_id] = value
        else:
            self._configs.pop(group_id, None)

    def _find_or_create(self, group_id: str, *, may_create: bool) -> tuple[Group | None, ErrorCode]:
        group = self._groups.get(group_id)
        if group is not None:
            return group, ErrorCode.NONE
        if not group_id or len(group_id) > GROUP_ID_CHARS_MAX:
            return None, ErrorCode.INVALID_GROUP_ID
        if not may_create:
            return None, ErrorCode.GROUP_ID_NOT_FOUND
        bound = self._settings.groups_max
        if len(self._groups) >= bound or not self._usage.may_add(group_id, GROUPS, bound):
            return None, ErrorCode.GROUP_MAX_SIZE_REACHED
        return self._add(group_id), ErrorCode.NONE

    def _no_group(self, group_id: str, code: ErrorCode, kind: str) -> str:
        if code is not ErrorCode.GROUP_MAX_SIZE_REACHED:
            return f"There is no {kind} group with this id."
        account, bound = self._usage.account_of(group_id), self._settings.groups_max
        if len(self._groups) >= bound:
            return f"This coordinator has {bound:,} of {bound:,} allowed groups. Delete some."
        return self._usage.reason(account, GROUPS, bound=bound)

    def _add(self, group_id: str) -> Group:
        offsets = Offsets(group_id, self._open_groups, self._usage)
        group = Group(group_id, offsets, ClassicGroup(group_id, self._settings))
        self._groups[group_id] = group
        self._usage.add(offsets.account, GROUPS, 1)
        return group

    def _remove(self, group: Group) -> None:
        if self._groups.pop(group.id, None) is not None:
            self._usage.add(group.offsets.account, GROUPS, -1)
        self._wakes.drop(group.id)

    def _finish(self, group: Group | None) -> None:
        """Set the group's timer, or drop the group if it has no rows and no members."""
        if group is not None:
            self._arm(group)
            if group.is_blank:
                self._remove(group)

    def _arm(self, group: Group) -> None:
        at_ms = group.members.next_wake_ms()
        if at_ms is None:
            self._wakes.drop(group.id)
        else:
            self._wakes.set(group.id, at_ms)

    def _erase_members(self, group: Group, decision: Decision) -> None:
        group.members.erase(decision)
        group.members = ClassicGroup(group.id, self._settings)

    def _erase(self, group: Group, decision: Decision) -> None:
        group.offsets.erase(decision)
        self._erase_members(group, decision)
        self._remove(group)


_GROUP_ROWS = (RowKind.CLASSIC, RowKind.CONSUMER, RowKind.SHARE, RowKind.STREAMS)
_MEMBERS: dict[int, type[Members]] = {
    RowKind.CLASSIC: ClassicGroup,
    RowKind.SHARE: ShareGroup,
    **dict.fromkeys(ConsumerGroup.kinds, ConsumerGroup),
    **dict.fromkeys((*StreamsGroup.kinds, RowKind.TOPOLOGY), StreamsGroup),
}
