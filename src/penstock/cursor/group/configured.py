"""Configs of the groups of one coordinator partition.

Below feature level 3 the configs are rows here. From that level on they are in the metadata store,
and ``broker/coordinator.py`` moves the remaining rows there.
"""

from collections.abc import Iterable, Mapping

from penstock.cursor.group.codes import Code
from penstock.cursor.group.decision import Decision, Draft, Reply
from penstock.cursor.group.records import CODEC, ConfigsKey, ConfigsValue
from penstock.cursor.group.settings import GROUP_ID_CHARS_MAX
from penstock.cursor.group.table import GroupTable
from penstock.model.quotas import GROUP_CONFIGS


class ConfiguredGroups(GroupTable):
    def configs_rows(self) -> dict[str, Mapping[str, str]]:
        """Return the configs that are to be moved to the metadata store, by group."""
        return {group_id: value.configs for group_id, value in self._configs.items()}

    def repeat_configs(self) -> Decision:
        """Write all configs again: once committed, this node is the leader and has all of them."""
        draft = Draft()
        for group_id, value in self._configs.items():
            draft.rows.append(CODEC.encode(ConfigsKey(group_id), value))
        return draft.decide(self._wakes.next_ms())

    def drop_configs(self, group_ids: Iterable[str]) -> Decision:
        """Delete the rows of configs that the metadata store has."""
        draft = Draft()
        for group_id in group_ids:
            key = ConfigsKey(group_id)
            draft.rows.append(CODEC.encode(key, None))
            self._apply_configs(key, None)
        return draft.decide(self._wakes.next_ms())

    def change_configs(
        self, group_id: str, changes: Mapping[str, str | None], *, ticket: int
    ) -> Decision:
        """Change configs of a group; None restores the default. Values have been checked."""
        draft = Draft()
        before = self.configs(group_id)
        merged = {**before, **changes}
        after = {name: text for name, text in sorted(merged.items()) if text is not None}
        if not group_id or len(group_id) > GROUP_ID_CHARS_MAX:
            draft.answer(ticket, Reply(Code.INVALID_GROUP_ID))
        elif after and not before and not self._has_room_for_configs(group_id):
            draft.answer(ticket, Reply(Code.GROUP_MAX_SIZE_REACHED))
        else:
            if after != before:
                key, value = ConfigsKey(group_id), ConfigsValue(after) if after else None
                draft.rows.append(CODEC.encode(key, value))
                self._apply_configs(key, value)
            draft.answer(ticket, Reply(), after_commit=True)
        return draft.decide(self._wakes.next_ms())

    def _has_room_for_configs(self, group_id: str) -> bool:
        account, bound = self._held.account_of(group_id), self._settings.configs_max
        if len(self._configs) >= bound:
            return False
        has_room = self._held.room(account, GROUP_CONFIGS, bound=bound) > 0
        if not has_room:
            self._held.note_refused(account, GROUP_CONFIGS)
        return has_room
