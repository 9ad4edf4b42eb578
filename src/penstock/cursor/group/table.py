"""The groups of one coordinator partition as a fold of its rows; finds, creates and drops groups.

``replay`` folds the rows of the internal topic in log order, then ``loaded`` starts the timers. A
group without rows exists only while a client is joining.
"""

from collections.abc import Callable, Mapping

from penstock.cursor.group.classic import ClassicGroup
from penstock.cursor.group.classic_state import State
from penstock.cursor.group.codes import Code
from penstock.cursor.group.consumer import ConsumerGroup
from penstock.cursor.group.deadlines import Deadlines
from penstock.cursor.group.decision import Decision, Draft
from penstock.cursor.group.fences import Fences
from penstock.cursor.group.offsets import Offsets
from penstock.cursor.group.records import (
    CODEC,
    ClassicKey,
    ClassicValue,
    ConfigsKey,
    ConfigsValue,
    ConsumerKey,
    ConsumerValue,
    CurrentKey,
    CurrentValue,
    FenceKey,
    FenceValue,
    MemberKey,
    MemberValue,
    OffsetKey,
    OffsetValue,
    PendingKey,
    PendingValue,
    ShareKey,
    ShareValue,
    StreamsKey,
    TargetKey,
    TargetOfKey,
    TargetOfValue,
    TargetValue,
)
from penstock.cursor.group.settings import (
    GROUP_ID_CHARS_MAX,
    ConsumerSettings,
    GroupSettings,
    StreamsSettings,
    consumer_settings,
    streams_settings,
)
from penstock.cursor.group.share import ShareGroup
from penstock.cursor.group.streams import StreamsGroup
from penstock.cursor.group.streams_fold import StreamsRowKey, StreamsRowValue
from penstock.cursor.tenants import FREE, Held
from penstock.model.quotas import GROUP_CONFIGS, GROUPS


class Group:
    """One group. At most one of ``classic``, ``consumer``, ``share`` and ``streams`` is set; none:
    offsets only."""

    __slots__ = ("account", "classic", "consumer", "id", "offsets", "share", "streams")

    def __init__(self, group_id: str, open_groups: dict[int, set[str]], held: Held) -> None:
        self.id = group_id
        self.account = held.account_of(group_id)
        self.offsets = Offsets(group_id, open_groups, held)
        self.classic: ClassicGroup | None = None
        self.consumer: ConsumerGroup | None = None
        self.share: ShareGroup | None = None
        self.streams: StreamsGroup | None = None

    @property
    def kind(self) -> str:
        if self.share is not None:
            return "share"
        if self.streams is not None:
            return "streams"
        return "classic" if self.consumer is None else "consumer"

    @property
    def state(self) -> str:
        coordinated = self.share or self.consumer or self.streams
        if coordinated is not None:
            return coordinated.state
        return State.EMPTY if self.classic is None else self.classic.state

    @property
    def is_empty(self) -> bool:
        return self.state == State.EMPTY

    @property
    def is_blank(self) -> bool:
        """The group has no rows, and no client is joining."""
        if self.kind != "classic" or len(self.offsets):
            return False
        return self.classic is None or (self.classic.row is None and self.classic.is_idle)


class GroupTable:
    def __init__(
        self,
        settings: GroupSettings,
        held: Held | None = None,
        *,
        stored: Callable[[str], Mapping[str, str]] | None = None,
    ) -> None:
        """``held`` has the tenants' counts for this coordinator, and their quotas. ``stored``
        returns the configs that the metadata store has for a group; None: all of them are rows."""
        self._settings = settings
        self._stored = stored
        self._held = held or Held(FREE)
        self._groups: dict[str, Group] = {}
        self._fences = Fences()
        self._configs: dict[str, ConfigsValue] = {}  # of groups that may not exist yet
        self._open_groups: dict[int, set[str]] = {}  # producer → groups with pending commits
        self._wakes: Deadlines[str] = Deadlines()

    # ── Replay ───────────────────────────────────────────────────────────────────────────────
    def replay(self, key: bytes, value: bytes | None, *, now_ms: int) -> None:
        """Apply a row of the log. Raises ValueError for an unknown row."""
        decoded, body = CODEC.decode(key, value)
        if isinstance(decoded, FenceKey):
            assert body is None or isinstance(body, FenceValue)
            self._fences.apply(decoded, body)
            return
        if isinstance(decoded, ConfigsKey):
            assert body is None or isinstance(body, ConfigsValue)
            self._apply_configs(decoded, body)
            return
        group = self._groups.get(decoded.group_id)
        if group is None:
            if body is None:
                return
            group = self._add(decoded.group_id)
        if isinstance(decoded, OffsetKey):
            assert body is None or isinstance(body, OffsetValue)
            group.offsets.apply_offset(decoded, body)
        elif isinstance(decoded, PendingKey):
            assert body is None or isinstance(body, PendingValue)
            group.offsets.apply_pending(decoded, body)
        elif isinstance(decoded, ClassicKey):
            assert body is None or isinstance(body, ClassicValue)
            self._replay_classic(group, body, now_ms)
        elif isinstance(decoded, ShareKey):
            assert body is None or isinstance(body, ShareValue)
            group.share = None if body is None else ShareGroup(group.id, self._settings, body)
        elif isinstance(decoded, StreamsRowKey):
            assert body is None or isinstance(body, StreamsRowValue)
            self._replay_streams(group, decoded, body)
        else:
            assert body is None or isinstance(
                body, ConsumerValue | MemberValue | TargetValue | TargetOfValue | CurrentValue
            )
            self._replay_consumer(group, decoded, body)
        if group.is_blank:
            self._remove(group)

    def _replay_classic(self, group: Group, value: ClassicValue | None, now_ms: int) -> None:
        if value is None:
            group.classic = None
            return
        if group.classic is None:
            group.classic = ClassicGroup(group.id, self._settings)
        group.classic.apply(value, now_ms=now_ms)

    def _replay_consumer(
        self,
        group: Group,
        key: ConsumerKey | MemberKey | TargetKey | TargetOfKey | CurrentKey,
        value: ConsumerValue | MemberValue | TargetValue | TargetOfValue | CurrentValue | None,
    ) -> None:
        if group.consumer is None:
            if value is None:
                return
            group.consumer = ConsumerGroup(group.id, self._settings)
        group.consumer.apply(key, value)
        if isinstance(key, ConsumerKey) and value is None:
            group.consumer = None  # its tombstone is the last one written

    def _replay_streams(
        self, group: Group, key: StreamsRowKey, value: StreamsRowValue | None
    ) -> None:
        if group.streams is None:
            if value is None:
                return
            group.streams = StreamsGroup(group.id, self._settings)
        group.streams.apply(key, value)
        if isinstance(key, StreamsKey) and value is None:
            group.streams = None  # its tombstone is the last one written

    def _apply_configs(self, key: ConfigsKey, value: ConfigsValue | None) -> None:
        account = self._held.account_of(key.group_id)
        change = (value is not None) - (key.group_id in self._configs)
        self._held.add(account, GROUP_CONFIGS, change)
        if value is None:
            self._configs.pop(key.group_id, None)
        else:
            self._configs[key.group_id] = value

    def configs(self, group_id: str) -> Mapping[str, str]:
        """Return the configs of a group, even if there is no such group. The metadata store
        overrides a row that was not moved there yet."""
        value = self._configs.get(group_id)
        rows = {} if value is None else value.configs
        stored = {} if self._stored is None else self._stored(group_id)
        return {**rows, **stored} if rows and stored else rows or stored

    def _times(self, group_id: str) -> ConsumerSettings:
        return consumer_settings(self.configs(group_id), self._settings)

    def _streams_times(self, group_id: str) -> StreamsSettings:
        return streams_settings(self.configs(group_id), self._settings)

    def loaded(self, *, now_ms: int) -> Decision:
        """Start all timers, once the whole topic was read."""
        for group in self._groups.values():
            if group.consumer is not None:
                group.consumer.times = self._times(group.id)
                group.consumer.arm(now_ms=now_ms)
            if group.streams is not None:
                group.streams.times = self._streams_times(group.id)
                group.streams.arm(now_ms=now_ms)
            self._arm(group)
        return Draft().decide(self._wakes.next_ms())

    # ── Finding and dropping ─────────────────────────────────────────────────────────────────
    def _find_or_create(self, group_id: str, *, may_create: bool) -> tuple[Group | None, Code]:
        group = self._groups.get(group_id)
        if group is not None:
            return group, Code.NONE
        if not group_id or len(group_id) > GROUP_ID_CHARS_MAX:
            return None, Code.INVALID_GROUP_ID
        if not may_create:
            return None, Code.GROUP_ID_NOT_FOUND
        bound = self._settings.groups_max
        if len(self._groups) >= bound:
            return None, Code.GROUP_MAX_SIZE_REACHED
        account = self._held.account_of(group_id)
        if not self._held.room(account, GROUPS, bound=bound):
            self._held.note_refused(account, GROUPS)
            return None, Code.GROUP_MAX_SIZE_REACHED
        return self._add(group_id), Code.NONE

    def _no_group(self, group_id: str, code: Code, kind: str) -> str:
        """Return why there is no such group, in one line for clients."""
        if code is not Code.GROUP_MAX_SIZE_REACHED:
            return f"There is no {kind} group of this name."
        account, bound = self._held.account_of(group_id), self._settings.groups_max
        if len(self._groups) >= bound:
            return f"This coordinator has {bound:,} of {bound:,} groups: delete some."
        return self._held.why(account, GROUPS, bound=bound)

    def _add(self, group_id: str) -> Group:
        group = self._groups[group_id] = Group(group_id, self._open_groups, self._held)
        self._held.add(group.account, GROUPS, 1)
        return group

    def _remove(self, group: Group) -> None:
        if self._groups.pop(group.id, None) is not None:
            self._held.add(group.account, GROUPS, -1)

    def _finish(self, group: Group, draft: Draft) -> Decision:
        self._arm(group)
        self._drop_if_blank(group)
        return draft.decide(self._wakes.next_ms())

    def _arm(self, group: Group) -> None:
        member = group.share or group.consumer or group.streams or group.classic
        at_ms = None if member is None else member.next_wake_ms()
        if at_ms is None:
            self._wakes.drop(group.id)
        else:
            self._wakes.set(group.id, at_ms)

    def _drop_if_blank(self, group: Group) -> None:
        if group.is_blank:
            self._remove(group)
            self._wakes.drop(group.id)

    def _erase_classic(self, group: Group, draft: Draft) -> None:
        if group.classic is not None and group.classic.row is not None:
            draft.rows.append(CODEC.encode(ClassicKey(group.id), None))
        group.classic = None

    def _erase(self, group: Group, draft: Draft) -> None:
        group.offsets.erase(draft)
        self._erase_classic(group, draft)
        if group.consumer is not None:
            group.consumer.erase(draft)
            group.consumer = None
        if group.share is not None:
            draft.rows.append(CODEC.encode(ShareKey(group.id), None))
            group.share = None
        if group.streams is not None:
            group.streams.erase(draft)
            group.streams = None
        self._remove(group)
        self._wakes.drop(group.id)

    def view(self) -> dict[str, object]:
        """Return the whole state; it must be equal for two folds of the same rows."""
        found: dict[str, object] = {"fences": self._fences.view()}
        for group_id, group in sorted(self._groups.items()):
            row = None if group.classic is None else group.classic.row
            members = None if group.consumer is None else group.consumer.view()
            share = None if group.share is None else group.share.value
            streams = None if group.streams is None else group.streams.view()
            rows = (row, members, share, streams)
            if any(each is not None for each in rows) or len(group.offsets):
                found[f"group {group_id}"] = (*rows, group.offsets.view())
        if self._configs:
            found["configs"] = dict(sorted(self._configs.items()))
        return found
