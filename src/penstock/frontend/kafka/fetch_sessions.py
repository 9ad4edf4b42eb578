"""Fetch sessions: a reader of many partitions names them once, and from then on only what changes.

    request                 answer
    id 0, epoch 0           all partitions, and the id of a session that holds them; 0 if none does
    id n, epoch 1, 2, 3 …   only partitions with something new; the request adds, changes, forgets
    id n, epoch 0           session n is over, a new one begins
    any, epoch -1           session n is over, and none begins

The epoch counts the requests of a session, so that one which was lost or sent twice is noticed; it
is answered with an error, upon which a client begins anew. A client must be ready for that at any
time, which is why sessions live in memory only and may be dropped for others. A session is its
caller's: to anybody else there is none of that id, however it was come by. Who has to go when
there is no room is decided as Kafka does: one that was not used for two minutes, else one that is
at least that old, smaller than the newcomer and not of a replica.

Pure: time and chance are arguments. What a session holds is in ``sought.py``."""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from penstock.frontend.kafka.sought import WANTED_AT_ONCE_MAX, Find, Place, SoughtSet
from penstock.model.limits import TENANT_SESSIONS_PERCENT
from penstock.model.ports import Catalog
from penstock.model.quotas import Shares
from penstock.model.topic import Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch_request import FetchRequest, FetchTopic, ForgottenTopic

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EPOCH_MAX: Final = 2**31 - 1
SESSION_ID_MAX: Final = 2**31 - 1

SESSIONS_MAX: Final = 1_000
PARTITIONS_MAX: Final = 100_000  # held by all sessions together, about a kilobyte each
IDLE_MS_MAX: Final = 120_000


class FetchSession:
    __slots__ = (
        "begun_at_ms",
        "catalog_turn",
        "epoch",
        "is_by_id",
        "is_of_replica",
        "owner",
        "rights_turn",
        "session_id",
        "size",
        "used_at_ms",
        "wanted",
        "wants_id",
    )

    def __init__(
        self, *, is_by_id: bool, is_of_replica: bool, wants_id: bool, owner: object = None
    ) -> None:
        self.owner = owner
        self.session_id = NO_SESSION  # until it is kept, and again when it is not any more
        self.epoch = INITIAL_EPOCH  # which the next request must have, once it is kept
        self.is_by_id = is_by_id
        self.is_of_replica = is_of_replica
        self.wants_id = wants_id
        self.wanted = SoughtSet()
        self.size = 0  # partitions, as the table of sessions counts them
        self.catalog_turn = 0
        self.rights_turn = 0
        self.begun_at_ms = self.used_at_ms = 0

    @property
    def is_kept(self) -> bool:
        return self.session_id != NO_SESSION

    @property
    def account(self) -> str:
        """Of the tenant that the session belongs to."""
        return self.owner[0] if isinstance(self.owner, tuple) else ""

    @property
    def rank(self) -> tuple[bool, int]:
        """What it is worth when there is no room for all."""
        return self.is_of_replica, self.size


class FetchSessions:
    def __init__(
        self,
        *,
        sessions_max: int = SESSIONS_MAX,
        partitions_max: int = PARTITIONS_MAX,
        own_account: str | None = None,
    ) -> None:
        """``own_account``: of the node's own tenant; others have a share. None: all have all."""
        percent = TENANT_SESSIONS_PERCENT
        self._sessions = Shares(sessions_max, percent, own_account=own_account)
        self._partitions = Shares(partitions_max, percent, own_account=own_account)
        self._kept: dict[int, FetchSession] = {}  # longest unused first
        self._catalog: Catalog | None = None
        self._catalog_turn = 0
        self.evicted_count = 0
        # Large sets of sessions that have ended: the next request releases them in steps.
        self.dropped: list[SoughtSet] = []

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def partition_count(self) -> int:
        return self._partitions.total

    def attend(self, catalog: Catalog) -> None:
        """Be told of its changes from now on."""
        if self._catalog is not catalog:
            self._catalog = catalog
            catalog.on_change(self._catalog_changed)

    def _catalog_changed(self, _before: Topic | None, _after: Topic | None) -> None:
        """Places may stand for other topics now; each session sees to it with its next request."""
        self._catalog_turn += 1

    def stale_places(self, session_id: int, owner: object, rights_turn: int) -> Collection[Place]:
        """The places of a session that its next request must look up again."""
        kept = self._kept.get(session_id)
        if kept is None or kept.owner != owner:
            return ()
        is_stale = (kept.catalog_turn, kept.rights_turn) != (self._catalog_turn, rights_turn)
        return kept.wanted.topics if is_stale else ()

    # ── A request ────────────────────────────────────────────────────────────────────────────

    def open(
        self,
        asked: FetchRequest,
        find: Find,
        *,
        is_by_id: bool,
        now_ms: int,
        owner: object = None,
        rights_turn: int = 0,
    ) -> FetchSession | ErrorCode:
        """What the request is about, with all of its changes made: a session that is kept, or one
        of this request alone, which ``keep`` may turn into one that is. ``owner``: who asks;
        ``rights_turn``: raised when somebody's rights have changed, and places may stand for
        something else because of that."""
        if asked.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._drop_id(asked.session_id, owner)
            session = FetchSession(
                is_by_id=is_by_id,
                is_of_replica=asked.replica_id >= 0,
                wants_id=asked.session_epoch == INITIAL_EPOCH,
                owner=owner,
            )
            session.catalog_turn = self._catalog_turn
            session.rights_turn = rights_turn
            session.wanted.want(asked.topics, find, is_by_id=is_by_id)
            return session
        kept = self._kept.get(asked.session_id)
        if kept is None or kept.owner != owner:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if kept.epoch != asked.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if kept.is_by_id != is_by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        return self._go_on(kept, asked, find, now_ms, rights_turn)

    def _go_on(
        self,
        session: FetchSession,
        asked: FetchRequest,
        find: Find,
        now_ms: int,
        rights_turn: int,
    ) -> FetchSession | ErrorCode:
        session.epoch = next_epoch(session.epoch)
        wanted = session.wanted
        if wanted.wake is not None:
            wanted.wake()  # the request before this one still waits, and in vain
        wanted.settle()
        wanted.want(asked.topics, find, is_by_id=session.is_by_id)
        wanted.forget(asked.forgotten_topics, is_by_id=session.is_by_id)
        turns = (self._catalog_turn, rights_turn)
        if (session.catalog_turn, session.rights_turn) != turns:
            session.catalog_turn, session.rights_turn = turns
            wanted.find_again(find)
        session.used_at_ms = now_ms
        self._kept[session.session_id] = self._kept.pop(session.session_id)
        return session if self._has_room(session) else ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    def grow(
        self,
        session: FetchSession,
        topics: Sequence[FetchTopic],
        forgotten: Sequence[ForgottenTopic],
        find: Find,
    ) -> bool:
        """Make more of the changes of a request, which was opened with the first of them. False if
        there is no room: the session is over."""
        session.wanted.want(topics, find, is_by_id=session.is_by_id)
        session.wanted.forget(forgotten, is_by_id=session.is_by_id)
        return not session.is_kept or self._has_room(session)

    def _has_room(self, session: FetchSession) -> bool:
        """Count the partitions of a session that is kept. Drop a session that has none or too many:
        its client opens a new session, and that request decides which sessions are kept."""
        partitions = self._partitions
        partitions.add(session.account, session.wanted.count - session.size)
        session.size = session.wanted.count
        is_full = partitions.is_full(0) or partitions.is_used_up(session.account, 0)
        if is_full or not session.size:
            self.drop(session)
        return not is_full

    # ── Which are kept ───────────────────────────────────────────────────────────────────────

    def keep(self, session: FetchSession, *, now_ms: int, chance: Callable[[], int]) -> None:
        """Give the session an id if there is room for it. ``chance`` makes ids hard to guess."""
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

    def _drop_id(self, session_id: int, owner: object) -> None:
        session = self._kept.get(session_id)
        if session is not None and session.owner == owner:
            self.drop(session)

    def drop(self, session: FetchSession) -> None:
        """A fetch that waits under it is answered, and its client told that the session is over."""
        del self._kept[session.session_id]
        self._sessions.add(session.account, -1)
        self._partitions.add(session.account, -session.size)
        session.session_id = NO_SESSION
        session.wants_id = False
        wanted = session.wanted
        if wanted.is_busy:
            if wanted.wake is not None:
                wanted.wake()
        elif wanted.count > WANTED_AT_ONCE_MAX:
            self.dropped.append(wanted)
        else:
            wanted.let_go()


def next_epoch(epoch: int) -> int:
    """Epochs begin again behind the largest, and not with the one that begins a session."""
    return 1 if epoch == EPOCH_MAX else epoch + 1


def _victim(
    among: Sequence[FetchSession], newcomer: FetchSession, *, now_ms: int
) -> FetchSession | None:
    """Which of these sessions, longest unused first, makes room for another one."""
    oldest = next(iter(among), None)
    if oldest is None or now_ms - oldest.used_at_ms > IDLE_MS_MAX:
        return oldest
    worth_least = min(
        (
            each
            for each in among
            if now_ms - each.begun_at_ms > IDLE_MS_MAX
            or newcomer.is_of_replica > each.is_of_replica
        ),
        key=lambda each: each.rank,
        default=None,
    )
    return None if worth_least is None or newcomer.rank <= worth_least.rank else worth_least
