"""Share sessions: the partitions that a member of a share group reads from this node, and the
records that it holds (has leases on).

A member sends its list of partitions once, and later only changes. Each request has the epoch of
the session, so a lost request or reply is noticed at once. Clients acknowledge offsets; the session
finds the lease for each offset. An acknowledgement of an earlier lease has no effect.

This module only decides which leases to change. ``shares/share_groups.py`` changes them."""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, TypeAlias

import msgspec
from msgspec import field

from penstock.frontend.kafka.sessions.by_identity import ByIdentity
from penstock.model.limits import TENANT_SESSIONS_PERCENT
from penstock.model.message import Claim
from penstock.model.quotas import SharedLimit
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import share_acknowledge, share_fetch

Place: TypeAlias = tuple[bytes, int]  # topic id, partition
Picks: TypeAlias = Sequence[tuple[int, int, int]]  # offset, lease_seq, attempt

OPENING: Final = 0
CLOSING: Final = -1
EPOCH_MAX: Final = 2**31 - 1
SESSIONS_MAX: Final = 2_000  # on this node; a member has one session
PLACES_MAX: Final = 20_000  # partitions of one session
HELD_MAX: Final = 10_000  # records that a member holds of one partition


AckBatch: TypeAlias = share_fetch.AcknowledgementBatch | share_acknowledge.AcknowledgementBatch


class Ack(IntEnum):
    GAP = 0  # there is no record at this offset
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AckPlan(msgspec.Struct, gc=False):
    accepted: list[Claim] = []
    rejected: list[Claim] = []
    released: list[Claim] = []
    renewed: list[Claim] = []


def are_valid(batches: Iterable[AckBatch], *, is_renewal: bool) -> bool:
    """Return whether batches are in ascending order, each with one ack type for all its offsets or
    one type for each offset. ``is_renewal`` allows the type RENEW, which extends leases."""
    last = -1
    ack_max = Ack.RENEW if is_renewal else Ack.REJECT
    for batch in batches:
        acks = batch.acknowledge_types
        if not last < batch.first_offset <= batch.last_offset or not acks:
            return False
        if len(acks) > 1 and len(acks) != batch.last_offset - batch.first_offset + 1:
            return False
        if min(acks) < Ack.GAP or max(acks) > ack_max:
            return False
        last = batch.last_offset
    return True


class ShareSession(ByIdentity):
    group_id: str
    member_id: str
    owner: object  # the connection; the session ends with it
    account: str = ""  # of the group and its topics
    epoch: int = OPENING + 1  # of the next request
    is_open: bool = True
    _places: dict[Place, None] = field(default_factory=dict)
    # By partition and offset: lease_seq and the time at which the lease ends.
    _held: dict[Place, dict[int, tuple[int, int]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._places)

    def add(self, places: Iterable[Place]) -> bool:
        """Add partitions. Return False and add none if there would be too many."""
        merged = {**self._places, **dict.fromkeys(places)}
        if len(merged) > PLACES_MAX:
            return False
        self._places = merged
        return True

    def forget(self, places: Iterable[Place]) -> None:
        """Remove partitions. The member may still acknowledge records of them that it holds."""
        for place in places:
            self._places.pop(place, None)

    def places(self) -> list[Place]:
        """Return the partitions, rotated with each request so that none of them starves."""
        places = list(self._places)
        turn = self.epoch % len(places) if places else 0
        return places[turn:] + places[:turn]

    def room(self, place: Place, now_ms: int) -> int:
        """Return how many more records of a partition the member may hold."""
        held = self._held.get(place)
        if held is None:
            return HELD_MAX
        if len(held) >= HELD_MAX:
            for offset in [o for o, (_, ends_at_ms) in held.items() if ends_at_ms <= now_ms]:
                del held[offset]
        return HELD_MAX - len(held)

    def hold(self, place: Place, picks: Picks, ends_at_ms: int) -> None:
        held = self._held.setdefault(place, {})
        for offset, lease_seq, _attempt in picks:
            held[offset] = (lease_seq, ends_at_ms)

    def let_go(self, place: Place, claims: Iterable[Claim]) -> None:
        held = self._held.get(place)
        if held is None:
            return
        for claim in claims:
            held.pop(claim.offset, None)
        if not held:
            del self._held[place]

    def held(self) -> Iterator[tuple[Place, list[Claim]]]:
        for (topic_id, partition), held in self._held.items():
            claims = [Claim(partition, offset, seq) for offset, (seq, _) in held.items()]
            yield (topic_id, partition), claims

    def plan(self, place: Place, batches: Sequence[AckBatch]) -> AckPlan | None:
        """Return the leases that acknowledgements change, or None if the member does not hold a
        record that it acknowledges. Gaps (offsets without a record) need not be held."""
        held = self._held.get(place, {})
        plan = AckPlan()
        added = (plan.accepted, plan.accepted, plan.released, plan.rejected, plan.renewed)  # by Ack
        for batch in batches:
            acks, first, last = batch.acknowledge_types, batch.first_offset, batch.last_offset
            is_each = len(acks) > 1
            if not is_each and last - first + 1 > len(held):
                if acks[0] != Ack.GAP:
                    return None
                offsets: Iterable[int] = sorted(o for o in held if first <= o <= last)
            else:
                offsets = range(first, last + 1)
            for offset in offsets:
                ack = acks[offset - first] if is_each else acks[0]
                found = held.get(offset)
                if found is not None:
                    added[ack].append(Claim(place[1], offset, found[0]))
                elif ack != Ack.GAP:
                    return None
        return plan


class ShareSessions:
    def __init__(self, sessions_max: int = SESSIONS_MAX, *, own_account: str | None = None) -> None:
        # Tenants other than ``own_account`` may use only a part of the limit; if None, all.
        percent = TENANT_SESSIONS_PERCENT
        self._shares = SharedLimit(sessions_max, percent, own_account=own_account)
        self._sessions: dict[tuple[str, str, str], ShareSession] = {}  # account, group, member

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, group_id: str, member_id: str, *, account: str = "") -> ShareSession | None:
        return self._sessions.get((account, group_id, member_id))

    def owned_by(self, owner: object) -> list[ShareSession]:
        return [session for session in self._sessions.values() if session.owner is owner]

    def open(
        self, group_id: str, member_id: str, owner: object, *, account: str = ""
    ) -> ShareSession | ErrorCode:
        """Open a session. The caller must have closed the member's previous session."""
        place = (account, group_id, member_id)
        assert place not in self._sessions, "closed before"
        if self._shares.is_full() or self._shares.is_used_up(account):
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        self._shares.add(account)
        session = ShareSession(group_id, member_id, owner, account)
        self._sessions[place] = session
        return session

    def go_on(
        self, group_id: str, member_id: str, epoch: int, *, account: str = ""
    ) -> ShareSession | ErrorCode:
        """Return the session of a request, and advance its epoch unless the request closes it."""
        session = self._sessions.get((account, group_id, member_id))
        if session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if epoch == CLOSING:
            return session
        if epoch != session.epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        return session

    def close(self, session: ShareSession) -> None:
        """Close a session. The caller must release the records that the member holds."""
        session.is_open = False
        key = (session.account, session.group_id, session.member_id)
        if self._sessions.get(key) is session:
            del self._sessions[key]
            self._shares.add(session.account, -1)
