"""Heartbeats of streams groups and share groups: find the group, or create it if allowed."""

from penstock.cursor.group.codes import Code
from penstock.cursor.group.configured import ConfiguredGroups
from penstock.cursor.group.consumer import JOIN, Topics
from penstock.cursor.group.decision import Decision, Draft, Reply
from penstock.cursor.group.settings import share_settings
from penstock.cursor.group.share import ShareGroup, ShareHeartbeat, ShareReply
from penstock.cursor.group.share import malformed as malformed_share
from penstock.cursor.group.streams import StreamsGroup
from penstock.cursor.group.streams_assignment import Assignment, Work
from penstock.cursor.group.streams_requests import (
    StreamsHeartbeat,
    StreamsReply,
    malformed,
    unsupported,
)
from penstock.cursor.group.table import Group


class HeartbeatGroups(ConfiguredGroups):
    @staticmethod
    def _is_idle_classic(group: Group) -> bool:
        """Return whether the group may become a consumer group or a streams group."""
        return group.kind == "classic" and (group.classic is None or group.classic.is_idle)

    # ── Streams groups ───────────────────────────────────────────────────────────────────────
    def streams_heartbeat(
        self,
        group_id: str,
        request: StreamsHeartbeat,
        topics: Topics,
        *,
        ticket: int,
        now_ms: int,
        wall_ms: int,
    ) -> Decision:
        draft = Draft()
        refusal = unsupported(request) or malformed(request)
        if refusal is not None:
            draft.answer(ticket, refusal)
            return draft.decide(self._wakes.next_ms())
        group, code = self._find_or_create(group_id, may_create=request.member_epoch == JOIN)
        may_become = request.member_epoch == JOIN
        if group is not None and group.streams is None:
            may_become &= self._is_idle_classic(group)
            if not may_become:
                group, code = None, Code.GROUP_ID_NOT_FOUND
        if group is None:
            text = self._no_group(group_id, code, "streams")
            draft.answer(ticket, StreamsReply(code, text, request.member_epoch))
            return draft.decide(self._wakes.next_ms())
        streams = group.streams or StreamsGroup(group_id, self._settings)
        streams.times = self._streams_times(group_id)
        streams.heartbeat(request, topics, draft, ticket=ticket, now_ms=now_ms, wall_ms=wall_ms)
        if streams.topology is not None:  # a rejected first join creates no group
            self._erase_classic(group, draft)
            group.streams = streams
        return self._finish(group, draft)

    def due_work(self, group_id: str) -> Work | None:
        """Return the assignment that a large streams group waits for. The caller computes it and
        passes the result to ``take_assignment``."""
        group = self._groups.get(group_id)
        return None if group is None or group.streams is None else group.streams.work

    def take_assignment(self, assignment: Assignment) -> Decision:
        draft = Draft()
        group = self._groups.get(assignment.work.group_id)
        if group is None or group.streams is None:
            return draft.decide(self._wakes.next_ms())
        group.streams.take_assignment(assignment, draft)
        return self._finish(group, draft)

    # ── Share groups ─────────────────────────────────────────────────────────────────────────
    def share_heartbeat(
        self,
        group_id: str,
        request: ShareHeartbeat,
        topics: Topics,
        *,
        ticket: int,
        now_ms: int,
    ) -> Decision:
        draft = Draft()
        refusal = malformed_share(request)
        if refusal is not None:
            draft.answer(ticket, refusal)
            return draft.decide(self._wakes.next_ms())
        group, code = self._find_or_create(group_id, may_create=request.member_epoch == JOIN)
        if group is not None and group.share is None and not group.is_blank:
            group, code = None, Code.GROUP_ID_NOT_FOUND
        if group is None:
            text = self._no_group(group_id, code, "share")
            draft.answer(ticket, ShareReply(code, text))
            return draft.decide(self._wakes.next_ms())
        share = group.share or ShareGroup(group_id, self._settings)
        settings = share_settings(self.configs(group_id))
        share.heartbeat(request, topics, settings, draft, ticket=ticket, now_ms=now_ms)
        if share.epoch:  # a rejected first join creates no group
            group.share = share
        return self._finish(group, draft)

    def make_share(self, group_id: str, *, ticket: int) -> Decision:
        """Create a share group without members, unless it exists. GROUP_ID_NOT_FOUND if a group of
        another kind has the name."""
        draft = Draft()
        group, code = self._find_or_create(group_id, may_create=True)
        if group is not None and group.share is None and not group.is_blank:
            group, code = None, Code.GROUP_ID_NOT_FOUND
        if group is not None and group.share is None:
            group.share = ShareGroup(group_id, self._settings)
            group.share.begin(draft)
        draft.answer(ticket, Reply(code), after_commit=group is not None)
        return draft.decide(self._wakes.next_ms()) if group is None else self._finish(group, draft)
