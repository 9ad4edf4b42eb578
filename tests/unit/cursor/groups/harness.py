"""A shell without I/O around ``Groups``: tickets, a log of rows, a clock that tests move."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.cursor import coordinator_calls as calls
from penstock.cursor.coordinated_groups import Groups
from penstock.cursor.groups.assigned import AssignedGroup
from penstock.cursor.groups.assignors import Partitions
from penstock.cursor.groups.classic.classic import ClassicGroup
from penstock.cursor.groups.classic.classic_state import (
    JoinReply,
    JoinRequest,
    LeaveReply,
    SyncReply,
    SyncRequest,
)
from penstock.cursor.groups.consumer import ConsumerHeartbeat, ConsumerReply
from penstock.cursor.groups.decision import Decision, Reply
from penstock.cursor.groups.offsets import CommitReply, CommitRequest, PartitionCommit
from penstock.cursor.groups.settings import GroupSettings
from penstock.cursor.groups.share import ShareGroup
from penstock.cursor.patterns.matches import Topics
from penstock.cursor.rows import Row
from penstock.wire.kafka.faults import ErrorCode

R = TypeVar("R", bound=Reply)
SECOND = 1_000
WALL = 1_700_000_000_000
DEV = GroupSettings(initial_delay_ms=0)


_PARTS = (
    "_members",
    "_targets",
    "_currents",
    "_states",
    "_owners",
    "_static",
    "_since",
    "_holders",
)


def view_of(groups: Groups) -> dict[str, object]:
    """The whole state, which is equal for two folds of the same rows."""
    found: dict[str, object] = {"fences": dict(groups._fences._fences)}
    for group in groups._groups.values():
        members, offsets = group.members, group.offsets
        state: object = None
        if isinstance(members, AssignedGroup) and not isinstance(members, ShareGroup):
            parts = (getattr(members, name, None) for name in (*_PARTS, "topology", "target_epoch"))
            state = (members.value, *parts)
        elif members is not None:
            state = members.row if isinstance(members, ClassicGroup) else members.value
        if state is not None or len(offsets):
            stored = (offsets._committed, offsets._pending, offsets._unstable)
            found[f"group {group.id}"] = (state, stored)
    return {**found, "configs": groups._configs} if groups._configs else found


@dataclass
class Shell:
    settings: GroupSettings = DEV
    now_ms: int = 0
    log: list[Row] = field(default_factory=list)
    answers: dict[int, Reply] = field(default_factory=dict)
    wake_at_ms: int | None = None
    tickets: int = 0
    ids: int = 0
    wall_skew_ms: int = 0

    def __post_init__(self) -> None:
        self.groups = Groups(self.settings)

    @property
    def wall_ms(self) -> int:
        return WALL + self.now_ms + self.wall_skew_ms

    def ticket(self) -> int:
        self.tickets += 1
        return self.tickets

    def decision(self, ticket: int | None = None) -> Decision:
        return Decision(ticket, now_ms=self.now_ms, wall_ms=self.wall_ms)

    def decide(self, decide: Callable[..., None], *args: object, **fields: object) -> int:
        """Carry out a decision about a request; the ticket of the request."""
        ticket = self.ticket()
        decision = self.decision(ticket)
        decide(*args, decision, **fields)
        self.take(decision)
        return ticket

    def take(self, decision: Decision) -> None:
        self.log.extend(decision.rows)
        for answer in decision.replies:
            assert answer.ticket not in self.answers, "a ticket is answered once"
            assert 0 < answer.ticket <= self.tickets
            self.answers[answer.ticket] = answer.reply
        self.wake_at_ms = self.groups.next_wake_ms()
        assert self.wake_at_ms is None or self.wake_at_ms > self.now_ms

    def reply(self, ticket: int, kind: type[R]) -> R:
        reply = self.answers[ticket]
        assert isinstance(reply, kind), reply
        return reply

    def is_parked(self, ticket: int) -> bool:
        return ticket not in self.answers

    def advance(self, ms: int) -> None:
        """As a timer would: ticks at every wake on the way."""
        end_ms = self.now_ms + ms
        while self.wake_at_ms is not None and self.wake_at_ms <= end_ms:
            self.now_ms = self.wake_at_ms
            decision = self.decision()
            self.groups.tick(decision)
            self.take(decision)
        self.now_ms = end_ms

    # ── Replay ───────────────────────────────────────────────────────────────────────────────
    def replayed(self, *, is_compacted: bool = False) -> Groups:
        rows = self.log
        if is_compacted:
            last = {row.key: index for index, row in enumerate(rows)}
            rows = [row for index, row in enumerate(rows) if last[row.key] == index]
        groups = Groups(self.settings)
        for row in rows:
            groups.replay(row.key, row.value, now_ms=self.now_ms)
        return groups

    def check_replay(self) -> None:
        live = view_of(self.groups)
        assert view_of(self.replayed()) == live
        assert view_of(self.replayed(is_compacted=True)) == live

    def restart(self) -> None:
        """The process dies: parked requests are gone, the log is what remains."""
        self.groups = self.replayed()
        decision = self.decision()
        self.groups.loaded(decision)
        self.take(decision)

    # ── Requests ─────────────────────────────────────────────────────────────────────────────
    def send_join(
        self,
        group: str = "g",
        *,
        member: str = "",
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (("range", b"m"),),
        protocol_type: str = "consumer",
        session_ms: int = 10 * SECOND,
        rebalance_ms: int = 30 * SECOND,
        confirms_id: bool = False,
        can_skip: bool = True,
    ) -> int:
        self.ids += 1
        request = JoinRequest(
            member,
            f"id-{self.ids}",
            session_ms,
            rebalance_ms,
            protocol_type,
            protocols,
            instance,
            "client",
            "/host",
            confirms_id,
            can_skip,
        )
        return self.decide(self.groups.join, calls.Join(group, request))

    def join(self, group: str = "g", **fields: object) -> JoinReply:
        return self.reply(self.send_join(group, **fields), JoinReply)  # type: ignore[arg-type]

    def send_sync(
        self,
        member: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> int:
        request = SyncRequest(
            member,
            generation,
            instance,
            protocol_type,
            protocol,
            tuple((assignments or {}).items()),
        )
        return self.decide(self.groups.sync, calls.Sync(group, request))

    def sync(self, member: str, generation: int, *args: object, **fields: object) -> SyncReply:
        return self.reply(self.send_sync(member, generation, *args, **fields), SyncReply)  # type: ignore[arg-type]

    def heartbeat(
        self, member: str, generation: int, *, instance: str | None = None, group: str = "g"
    ) -> ErrorCode:
        call = calls.Heartbeat(group, member, generation, instance)
        return self.reply(self.decide(self.groups.heartbeat, call), Reply).code

    def leave(self, *leavers: tuple[str, str | None], group: str = "g") -> list[ErrorCode]:
        ticket = self.decide(self.groups.leave, calls.Leave(group, leavers))
        return [code for _, _, code in self.reply(ticket, LeaveReply).members]

    def beat(
        self,
        topics: Topics,
        member: str,
        epoch: int,
        *,
        group: str = "g",
        names: tuple[str, ...] | None = None,
        owned: Partitions | None = None,
        instance: str | None = None,
        rack: str | None = None,
        regex: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int = 30 * SECOND,
    ) -> ConsumerReply:
        request = ConsumerHeartbeat(
            member,
            epoch,
            instance,
            rack,
            rebalance_ms,
            names,
            regex,
            assignor,
            owned,
            "client",
            "/host",
        )
        ticket = self.decide(self.groups.beat, calls.BeatConsumer(group, request), topics)
        return self.reply(ticket, ConsumerReply)

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        group: str = "g",
        member: str = "",
        generation: int = -1,
        producer: tuple[int, int] | None = None,
        metadata: str = "",
        knows_epochs: bool = True,
    ) -> ErrorCode:
        """The first code that is not NONE."""
        request = CommitRequest(
            tuple(PartitionCommit(t, p, o, -1, metadata) for (t, p), o in offsets.items()),
            member,
            generation,
            None,
            knows_epochs,
        )
        call = calls.Commit(group, request)
        ticket = self.decide(self.groups.commit, call, producer=producer)
        codes = [code for _, _, code in self.reply(ticket, CommitReply).partitions]
        return next((code for code in codes if code), ErrorCode.NONE)

    def end_transaction(self, producer: tuple[int, int], *, is_commit: bool) -> ErrorCode:
        call = calls.CompleteTransaction("g", *producer, is_commit)
        ticket = self.decide(self.groups.complete_transaction, call)
        return self.reply(ticket, Reply).code

    def offset(self, topic: str = "t", partition: int = 0, *, group: str = "g") -> int:
        call = calls.FetchOffsets(group, [(topic, partition)])
        return self.groups.fetch(call).partitions[0].offset

    # ── Whole dances ─────────────────────────────────────────────────────────────────────────
    def stable_group(self, count: int, *, instances: bool = False) -> tuple[list[str], int]:
        """``count`` members in one stable generation; member ids, leader first, and generation."""
        first = self.join(instance="i0" if instances else None)
        members = [first.member_id]
        for index in range(1, count):
            tickets = [self.send_join(instance=f"i{index}" if instances else None)]
            tickets += [
                self.send_join(member=m, instance=f"i{i}" if instances else None)
                for i, m in enumerate(members)
            ]
            members.append(self.reply(tickets[0], JoinReply).member_id)
        generation = self.groups.describe("g").generation
        shares = {m: f"share of {m}".encode() for m in members}
        tickets = [self.send_sync(m, generation) for m in members[1:]]
        tickets.append(self.send_sync(members[0], generation, shares))
        for ticket, member in zip(tickets, [*members[1:], members[0]], strict=True):
            reply = self.reply(ticket, SyncReply)
            assert reply.code == ErrorCode.NONE
            assert reply.assignment == shares[member]
        return members, generation


def topics_of(epoch: int = 1, **counts: int) -> Topics:
    return Topics(epoch, {name: (f"id-{name}", count) for name, count in counts.items()})


def parts(topic: str, *numbers: int) -> Partitions:
    return frozenset((f"id-{topic}", number) for number in numbers)
