"""Fetch sessions: a reader sends its list of partitions once, and later only changes of the list.

    request                 reply
    id 0, epoch 0           all partitions, and the id of a new session; 0 if there is no room
    id n, epoch 1, 2, 3 …   only partitions with new records or offsets
    id n, epoch 0           session n ends, a new one begins
    id n, epoch -1          session n ends, none begins

The epoch counts the requests of a session, so that a lost or repeated request is noticed: it gets
an error, and the client opens a new session. Clients must expect this error at any time, so
sessions are only in memory and may be dropped to make room. Only the caller who opened a session
can use it. As in Kafka, if there is no room, a new session replaces one that was unused for two
minutes, or else one that is older than two minutes, smaller than the new one and not of a replica.

Callers pass the time and random numbers. ``fetch_sets.py`` has the partitions of a session."""

from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from penstock.frontend.kafka.sessions.by_identity import ByIdentity
from penstock.frontend.kafka.sessions.fetch_sets import ADDED_AT_ONCE_MAX, FetchSet, Find, TopicKey
from penstock.model.limits import TENANT_SESSIONS_PERCENT
from penstock.model.ports import Catalog
from penstock.model.quotas import SharedLimit
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import FetchRequest, FetchTopic, ForgottenTopic

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EPOCH_MAX: Final = 2**31 - 1
SESSION_ID_MAX: Final = 2**31 - 1

SESSIONS_MAX: Final = 1_000
PARTITIONS_MAX: Final = 100_000  # of all sessions together, about 1 KB each
IDLE_MS_MAX: Final = 120_000


class FetchSession(ByIdentity, kw_only=True):
    is_by_id: bool
    is_of_replica: bool
    wants_id: bool
    owner: object = None
    session_id: int = NO_SESSION  # until the session is kept
    epoch: int = INITIAL_EPOCH  # of the next request, once the session is kept
    wanted: FetchSet = msgspec.field(default_factory=FetchSet)
    size: int = 0  # number of partitions that ``FetchSessions`` has counted
    catalog_turn: int = 0
    rights_turn: int = 0
    begun_at_ms: int = 0
    used_at_ms: int = 0

    @property
    def is_kept(self) -> bool:
        return self.session_id != NO_SESSION

    @property
    def account(self) -> str:
        return self.owner[0] if isinstance(self.owner, tuple) else ""

    @property
    def rank(self) -> tuple[bool, int]:
        """Return a sort key. The session with the lowest rank is dropped first."""
        return self.is_of_replica, self.size


class FetchSessions:
    def __init__(
        self,
        *,
        sessions_max: int = SESSIONS_MAX,
        partitions_max: int = PARTITIONS_MAX,
        own_account: str | None = None,
    ) -> None:
        # Tenants other than ``own_account`` may use only a part of the limits; if None, all.
        percent = TENANT_SESSIONS_PERCENT
        self._sessions = SharedLimit(sessions_max, percent, own_account=own_account)
        self._partitions = SharedLimit(partitions_max, percent, own_account=own_account)
        self._kept: dict[int, FetchSession] = {}  # least recently used first
        self._catalog: Catalog | None = None
        self._catalog_turn = 0
        self.evicted_count = 0
        # Large sets of ended sessions, which the next request releases in steps.
        self.dropped: list[FetchSet] = []

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def partition_count(self) -> int:
        return self._partitions.total

    def attend(self, catalog: Catalog) -> None:
        if self._catalog is not catalog:
            self._catalog = catalog
            catalog.on_change(self._catalog_changed)

    def _catalog_changed(self, _before: Topic | None, _after: Topic | None) -> None:
        """Make each session look up its topics again at its next request."""
        self._catalog_turn += 1

    def stale_topics(
        self, session_id: int, owner: object, rights_turn: int
    ) -> Collection[TopicKey]:
        """Return the topics of a session that its next request must look up again."""
        kept = self._kept.get(session_id)
        if kept is None or kept.owner != owner:
            return ()
        is_stale = (kept.catalog_turn, kept.rights_turn) != (self._catalog_turn, rights_turn)
        return kept.wanted.topics if is_stale else ()

    def open(
        self,
        request: FetchRequest,
        find: Find,
        *,
        is_by_id: bool,
        now_ms: int,
        owner: object = None,
        rights_turn: int = 0,
    ) -> FetchSession | ErrorCode:
        """Return the session of a request, with the changes in the request applied. A new session
        ends with its request unless ``keep`` is called. ``owner`` is the caller. ``rights_turn`` is
        a number that changes whenever access rights change; topics are then looked up again."""
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            older = self._kept.get(request.session_id)
            if older is not None and older.owner == owner:
                self.drop(older)
            session = FetchSession(
                is_by_id=is_by_id,
                is_of_replica=max(request.replica_id, request.replica_state.replica_id) >= 0,
                wants_id=request.session_epoch == INITIAL_EPOCH,
                owner=owner,
                catalog_turn=self._catalog_turn,
                rights_turn=rights_turn,
            )
            session.wanted.want(request.topics, find, is_by_id=is_by_id)
            return session
        kept = self._kept.get(request.session_id)
        if kept is None or kept.owner != owner:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if kept.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if kept.is_by_id != is_by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        kept.epoch = next_epoch(kept.epoch)
        wanted = kept.wanted
        if wanted.wake is not None:
            wanted.wake()  # the previous request still waits
        wanted.settle()
        wanted.want(request.topics, find, is_by_id=is_by_id)
        wanted.forget(request.forgotten_topics, is_by_id=is_by_id)
        turns = (self._catalog_turn, rights_turn)
        if (kept.catalog_turn, kept.rights_turn) != turns:
            kept.catalog_turn, kept.rights_turn = turns
            wanted.find_again(find)
        kept.used_at_ms = now_ms
        self._kept[kept.session_id] = self._kept.pop(kept.session_id)
        return kept if self._has_room(kept) else ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    def grow(
        self,
        session: FetchSession,
        topics: Sequence[FetchTopic],
        forgotten: Sequence[ForgottenTopic],
        find: Find,
    ) -> bool:
        """Add another part of a large request. Return False if there is no room for it."""
        session.wanted.want(topics, find, is_by_id=session.is_by_id)
        session.wanted.forget(forgotten, is_by_id=session.is_by_id)
        return not session.is_kept or self._has_room(session)

    def _has_room(self, session: FetchSession) -> bool:
        """Count the partitions of a kept session. Return whether there is room for them. The
        session is dropped if there is no room or if it has no partitions."""
        partitions = self._partitions
        partitions.add(session.account, session.wanted.count - session.size)
        session.size = session.wanted.count
        is_full = partitions.is_full(0) or partitions.is_used_up(session.account, 0)
        if is_full or not session.size:
            self.drop(session)
        return not is_full

    def keep(self, session: FetchSession, *, now_ms: int, chance: Callable[[], int]) -> None:
        """Keep the session if there is room. ``chance`` returns the random number for its id."""
        size = session.wanted.count
        if not session.wants_id or not size or size > self._partitions.bound:
            return
        session.size = size
        account = session.account
        while True:
            if self._sessions.is_used_up(account) or self._partitions.is_used_up(account, size):
                among = [each for each in self._kept.values() if each.account == account]
            elif self._sessions.is_full() or self._partitions.is_full(size):
                among = list(self._kept.values())
            else:
                break
            victim = _victim(among, session, now_ms=now_ms)
            if victim is None:
                return
            self.evicted_count += 1
            self.drop(victim)
        session_id = chance() % SESSION_ID_MAX + 1
        while session_id in self._kept:
            session_id = session_id % SESSION_ID_MAX + 1
        session.session_id = session_id
        session.epoch = next_epoch(INITIAL_EPOCH)
        session.begun_at_ms = session.used_at_ms = now_ms
        self._kept[session_id] = session
        self._sessions.add(account)
        self._partitions.add(account, size)

    def drop(self, session: FetchSession) -> None:
        """End a session. A fetch that waits in the session gets a reply with an error."""
        del self._kept[session.session_id]
        self._sessions.add(session.account, -1)
        self._partitions.add(session.account, -session.size)
        session.session_id = NO_SESSION
        session.wants_id = False
        wanted = session.wanted
        if wanted.is_busy:
            if wanted.wake is not None:
                wanted.wake()
        elif wanted.count > ADDED_AT_ONCE_MAX:
            self.dropped.append(wanted)
        else:
            wanted.release()


def next_epoch(epoch: int) -> int:
    """Return the next epoch. The largest epoch is followed by 1, because 0 opens a session."""
    return 1 if epoch == EPOCH_MAX else epoch + 1


def _victim(some: Sequence[FetchSession], new: FetchSession, *, now_ms: int) -> FetchSession | None:
    """Return the session of ``some`` (least recently used first) to drop for ``new``, or None."""
    oldest = next(iter(some), None)
    if oldest is None or now_ms - oldest.used_at_ms > IDLE_MS_MAX:
        return oldest
    lowest = min(
        (
            each
            for each in some
            if now_ms - each.begun_at_ms > IDLE_MS_MAX or new.is_of_replica > each.is_of_replica
        ),
        key=lambda each: each.rank,
        default=None,
    )
    return None if lowest is None or new.rank <= lowest.rank else lowest
