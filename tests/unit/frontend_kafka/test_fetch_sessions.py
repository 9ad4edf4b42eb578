"""Which sessions are kept, under which ids and epochs, and who goes when there is no room."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.frontend.kafka.sessions.fetch_sessions import (
    EPOCH_MAX,
    IDLE_MS_MAX,
    FetchSession,
    FetchSessions,
    next_epoch,
)
from penstock.frontend.kafka.sessions.fetch_sets import (
    ADDED_AT_ONCE_MAX,
    FetchSet,
    TopicKey,
    in_parts,
    is_large,
)
from penstock.model.topic import Topic
from penstock.net.slices import PORTION
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from penstock.wire.kafka.primitives import ZERO_UUID

OLD_MS = IDLE_MS_MAX + 1


def nowhere(_place: TopicKey) -> Topic | ErrorCode:
    """No topic has to be there for a session to hold its name."""
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def request(
    session_id: int = 0,
    epoch: int = 0,
    wanted: Sequence[int] = (),
    forgotten: Sequence[int] = (),
    *,
    replica_id: int = -1,
) -> FetchRequest:
    partitions = [FetchPartition(index, 0, 1_000) for index in wanted]
    return FetchRequest(
        0,
        1,
        [FetchTopic("t", ZERO_UUID, partitions)] if partitions else (),
        session_id=session_id,
        session_epoch=epoch,
        forgotten_topics=[ForgottenTopic("t", ZERO_UUID, forgotten)] if forgotten else (),
        replica_id=replica_id,
    )


class Table:
    """Sessions, a clock and ids that count up."""

    def __init__(
        self, sessions_max: int = 3, partitions_max: int = 100, own_account: str | None = None
    ) -> None:
        self.sessions = FetchSessions(
            sessions_max=sessions_max, partitions_max=partitions_max, own_account=own_account
        )
        self.account = ""  # who asks
        self.now_ms = 1_000_000
        self._ids = itertools.count(500)

    def ask(self, asked: FetchRequest, *, is_by_id: bool = False) -> FetchSession | ErrorCode:
        """A request and its answer. Whether anything is found does not matter here."""
        owner = (self.account, "user")
        found = self.sessions.open(
            asked, nowhere, is_by_id=is_by_id, now_ms=self.now_ms, owner=owner
        )
        if isinstance(found, FetchSession):
            if not found.is_kept:
                self.sessions.keep(found, now_ms=self.now_ms, chance=lambda: next(self._ids))
            found.wanted.settle()
        return found

    def begin(self, size: int = 1, *, replica_id: int = -1) -> FetchSession:
        session = self.ask(request(0, 0, range(size), replica_id=replica_id))
        assert isinstance(session, FetchSession)
        return session

    def has(self, session_id: int) -> bool:
        answer = self.ask(request(session_id, 7_777))
        return answer is not ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_has_an_id_and_counts_its_requests() -> None:
    table = Table()
    session = table.begin(2)
    assert (session.session_id, session.size) == (501, 2)
    for epoch in (1, 2, 3):
        assert table.ask(request(501, epoch)) is session
    assert table.ask(request(501, 3)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert table.ask(request(501, 5)) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert table.ask(request(501, 4)) is session


def test_epochs_begin_again_with_one() -> None:
    assert [next_epoch(0), next_epoch(1), next_epoch(EPOCH_MAX)] == [1, 2, 1]


@pytest.mark.parametrize(("session_id", "epoch"), [(0, 1), (9, 1), (-1, 3), (9, -2)])
def test_there_is_no_session_but_those_that_were_begun(session_id: int, epoch: int) -> None:
    answer = Table().ask(request(session_id, epoch))
    assert answer is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_names_and_ids_do_not_mix() -> None:
    table = Table()
    session_id = table.begin().session_id
    mixed = table.ask(request(session_id, 1), is_by_id=True)
    assert mixed is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert isinstance(table.ask(request(session_id, 1)), FetchSession)


def test_partitions_are_added_and_forgotten() -> None:
    table = Table()
    session = table.begin(3)
    table.ask(request(501, 1, wanted=[1, 7], forgotten=[0, 9]))
    assert [one.requested.index for one in session.wanted] == [1, 2, 7]
    assert table.sessions.partition_count == session.size == 3


def test_a_session_without_partitions_is_over() -> None:
    table = Table()
    table.begin(1)
    last = table.ask(request(501, 1, forgotten=[0]))
    assert isinstance(last, FetchSession)
    assert not last.is_kept
    assert (len(table.sessions), table.sessions.partition_count) == (0, 0)


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_ends_the_session_it_names(epoch: int) -> None:
    table = Table()
    table.begin(2)
    after = table.ask(request(501, epoch, range(5)))
    assert isinstance(after, FetchSession)
    assert after.is_kept == (epoch == 0)
    assert not table.has(501)
    assert len(table.sessions) == (1 if epoch == 0 else 0)


def test_an_id_in_use_is_not_given_again() -> None:
    sessions = FetchSessions()
    ids = []
    for _ in range(3):
        session = sessions.open(request(0, 0, [0]), nowhere, is_by_id=False, now_ms=0)
        assert isinstance(session, FetchSession)
        sessions.keep(session, now_ms=0, chance=lambda: 2**31 - 3)
        ids.append(session.session_id)
    assert ids == [2**31 - 2, 2**31 - 1, 1]


# ── Room ─────────────────────────────────────────────────────────────────────────────────────


def test_who_came_late_gets_no_session_while_all_are_in_use() -> None:
    table = Table()
    for _ in range(3):
        table.begin(1)
    assert not table.begin(50).is_kept
    assert len(table.sessions) == 3
    assert table.sessions.evicted_count == 0


def test_the_longest_unused_goes_first_once_it_is_idle() -> None:
    table = Table()
    ids = [table.begin(size).session_id for size in (9, 1, 5)]
    table.now_ms += IDLE_MS_MAX
    table.ask(request(ids[0], 1))
    table.now_ms += 1
    table.ask(request(ids[2], 1))
    assert table.begin(1).is_kept
    assert [table.has(each) for each in ids] == [True, False, True]
    assert table.sessions.evicted_count == 1


def test_a_smaller_old_one_gives_way_to_a_larger() -> None:
    table = Table()
    ids = [table.begin(size).session_id for size in (9, 4, 5)]
    table.now_ms += OLD_MS
    for each in ids:
        table.ask(request(each, 1))
    assert not table.begin(4).is_kept
    assert table.begin(5).is_kept
    assert [table.has(each) for each in ids] == [True, False, True]


def test_one_that_has_just_begun_does_not_give_way() -> None:
    table = Table()
    ids = [table.begin(1).session_id for _ in range(3)]
    table.now_ms += IDLE_MS_MAX
    assert not table.begin(90).is_kept
    assert all(table.has(each) for each in ids)


def test_a_replica_is_not_put_aside_for_a_consumer_and_puts_consumers_aside() -> None:
    table = Table(sessions_max=2)
    replica, consumer = table.begin(1, replica_id=7), table.begin(50)
    assert table.begin(1, replica_id=8).is_kept
    assert not consumer.is_kept
    table.now_ms += OLD_MS
    table.ask(request(replica.session_id, 1))
    table.begin(1, replica_id=9)
    assert not table.begin(60).is_kept


def test_partitions_are_bounded_in_all() -> None:
    table = Table(partitions_max=10)
    small, large = table.begin(3), table.begin(6)
    assert not table.begin(2).is_kept
    assert table.begin(1).is_kept
    table.now_ms += OLD_MS
    table.ask(request(large.session_id, 1))
    assert table.begin(4).is_kept
    assert not small.is_kept
    assert not table.begin(11).is_kept


def test_a_session_that_grows_beyond_the_bound_has_to_begin_anew() -> None:
    table = Table(partitions_max=10)
    table.begin(6)
    grown = table.begin(4)
    answer = table.ask(request(grown.session_id, 1, wanted=[50]))
    assert answer is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert not grown.is_kept
    assert (len(table.sessions), table.sessions.partition_count) == (1, 6)


# ── Against a model ──────────────────────────────────────────────────────────────────────────

PARTITIONS = st.lists(st.integers(0, 8), max_size=5, unique=True)


class Known:
    def __init__(self, partitions: set[int], at_ms: int) -> None:
        self.partitions = partitions
        self.epoch = 1
        self.begun_at_ms = self.used_at_ms = at_ms


class SessionsMachine(RuleBasedStateMachine):
    """Every answer is what a table of plain sets would answer."""

    SLOTS, TOTAL = 3, 12

    def __init__(self) -> None:
        super().__init__()
        self.table = Table(self.SLOTS, self.TOTAL)
        self.known: dict[int, Known] = {}

    def _total(self) -> int:
        return sum(len(each.partitions) for each in self.known.values())

    def _make_room(self, size: int) -> bool:
        now_ms = self.table.now_ms
        if not 0 < size <= self.TOTAL:
            return False
        while len(self.known) >= self.SLOTS or self._total() + size > self.TOTAL:
            unused = min(self.known, key=lambda each: self.known[each].used_at_ms)
            if now_ms - self.known[unused].used_at_ms > IDLE_MS_MAX:
                del self.known[unused]
                continue
            old = [
                each
                for each in self.known
                if now_ms - self.known[each].begun_at_ms > IDLE_MS_MAX
                and len(self.known[each].partitions) < size
            ]
            if not old:
                return False
            del self.known[min(old, key=lambda each: len(self.known[each].partitions))]
        return True

    @rule(wanted=PARTITIONS, epoch=st.sampled_from([0, 0, -1]), data=st.data())
    def begin(self, wanted: list[int], epoch: int, data: st.DataObject) -> None:
        named = data.draw(st.sampled_from([0, *self.known]))
        session = self.table.ask(request(named, epoch, wanted))
        assert isinstance(session, FetchSession)
        self.known.pop(named, None)
        is_kept = epoch == 0 and self._make_room(len(wanted))
        assert session.is_kept == is_kept
        if is_kept:
            assert session.session_id not in self.known
            self.known[session.session_id] = Known(set(wanted), self.table.now_ms)

    @precondition(lambda self: self.known)
    @rule(wanted=PARTITIONS, forgotten=PARTITIONS, data=st.data())
    def go_on(self, wanted: list[int], forgotten: list[int], data: st.DataObject) -> None:
        session_id = data.draw(st.sampled_from(sorted(self.known)))
        known = self.known[session_id] = self.known.pop(session_id)  # the longest unused is first
        answer = self.table.ask(request(session_id, known.epoch, wanted, forgotten))
        known.epoch += 1
        known.used_at_ms = self.table.now_ms
        known.partitions = (known.partitions | set(wanted)) - set(forgotten)
        if self._total() > self.TOTAL:
            assert answer is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            del self.known[session_id]
            return
        assert isinstance(answer, FetchSession)
        assert {one.requested.index for one in answer.wanted} == known.partitions
        if not known.partitions:
            del self.known[session_id]
        assert answer.is_kept == bool(known.partitions)

    @precondition(lambda self: self.known)
    @rule(off=st.sampled_from([-1, 1, 5]), data=st.data())
    def be_out_of_step(self, off: int, data: st.DataObject) -> None:
        session_id = data.draw(st.sampled_from(sorted(self.known)))
        epoch = self.known[session_id].epoch + off
        if epoch > 0:
            answer = self.table.ask(request(session_id, epoch, [8], [0]))
            assert answer is ErrorCode.INVALID_FETCH_SESSION_EPOCH

    @rule(ms=st.sampled_from([1, IDLE_MS_MAX // 2, IDLE_MS_MAX, OLD_MS]))
    def time_passes(self, ms: int) -> None:
        self.table.now_ms += ms

    @invariant()
    def the_counts_are_right(self) -> None:
        sessions = self.table.sessions
        assert len(sessions) == len(self.known) <= self.SLOTS
        assert sessions.partition_count == self._total() <= self.TOTAL


SessionsMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSessions = SessionsMachine.TestCase


def test_a_tenant_has_a_share_of_sessions_and_partitions_and_the_nodes_own_has_all() -> None:
    table = Table(sessions_max=30, partitions_max=300, own_account="own")
    table.account = "1"
    kept = [table.begin().is_kept for _ in range(5)]
    assert kept == [True, True, True, False, False]
    table.account = "2"
    assert not table.begin(31).is_kept, "more partitions than its share"
    larger = table.begin(29)
    assert larger.is_kept
    grown = table.ask(request(larger.session_id, 1, [100, 101]))
    assert grown is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    table.account = "own"
    assert sum(table.begin().is_kept for _ in range(40)) == 27
    assert table.sessions.partition_count == 30


def test_beyond_its_share_a_tenant_loses_sessions_of_its_own_only() -> None:
    table = Table(sessions_max=20, partitions_max=1_000, own_account="own")
    theirs = table.begin()
    table.account = "1"
    first, second = table.begin(), table.begin()
    table.now_ms += IDLE_MS_MAX + 1
    assert table.begin().is_kept
    assert (theirs.is_kept, first.is_kept, second.is_kept) == (True, False, True)


# ── Requests with many partitions ────────────────────────────────────────────────────────────


@given(st.lists(st.integers(0, 3 * ADDED_AT_ONCE_MAX), max_size=6), st.integers(0, 1_500))
def test_parts_hold_all_partitions_in_their_order(sizes: list[int], single: int) -> None:
    topics = [
        FetchTopic(f"t{number}", ZERO_UUID, [FetchPartition(n, 0, 1) for n in range(size)])
        for number, size in enumerate((*sizes, *(1 for _ in range(single))))
    ]
    parts = in_parts(topics)
    assert [
        (topic.name, each.index) for part in parts for topic in part for each in topic.partitions
    ] == [(topic.name, each.index) for topic in topics for each in topic.partitions]
    for part in parts:
        assert len(part) + sum(len(topic.partitions) for topic in part) <= ADDED_AT_ONCE_MAX
    assert is_large(topics) or len(parts) == 1


def test_a_session_that_grows_is_counted_part_by_part() -> None:
    table = Table(partitions_max=100)
    session = table.begin(10)
    assert table.ask(request(501, 1, wanted=range(30))) is session
    more = request(0, 0, range(20, 60)).topics
    assert table.sessions.grow(session, more, [ForgottenTopic("t", ZERO_UUID, [0, 59])], nowhere)
    assert table.sessions.partition_count == session.size == session.wanted.count == 58


def test_a_session_that_grows_too_large_is_over_and_counted_no_more() -> None:
    table = Table(partitions_max=100)
    others = table.begin(20)
    session = table.begin(10)
    assert table.ask(request(502, 1, wanted=range(60))) is session
    assert not table.sessions.grow(session, request(0, 0, range(60, 200)).topics, (), nowhere)
    assert not session.is_kept
    assert table.sessions.partition_count == others.size == 20


def test_a_new_session_is_counted_when_it_is_kept() -> None:
    table = Table(partitions_max=100)
    session = table.sessions.open(request(0, 0, range(5)), nowhere, is_by_id=False, now_ms=0)
    assert isinstance(session, FetchSession)
    assert table.sessions.grow(session, request(0, 0, range(5, 9)).topics, (), nowhere)
    assert (table.sessions.partition_count, session.wanted.count) == (0, 9)
    table.sessions.keep(session, now_ms=0, chance=lambda: 1)
    assert table.sessions.partition_count == session.size == 9


def looked_at(count: int) -> FetchSet:
    """A fetch has found records in every third partition, and an error in every second."""
    found = FetchSet()
    found.want(request(0, 0, range(count)).topics, nowhere, is_by_id=False)
    for one in tuple(found.due):
        del found.due[one]
        found.looked[one] = None
        one.size = 1 if one.requested.index % 3 == 0 else 0
        one.code = ErrorCode.UNKNOWN_SERVER_ERROR if one.requested.index % 2 else ErrorCode.NONE
    return found


def test_a_fetch_settled_in_steps_leaves_the_same_order() -> None:
    count = 2 * PORTION + 7
    at_once, in_steps = looked_at(count), looked_at(count)
    at_once.settle()
    assert sum(1 for _ in in_steps.settling()) == 3
    assert [one.requested.index for one in in_steps.due] == [
        one.requested.index for one in at_once.due
    ]
    assert not in_steps.looked


def test_what_a_fetch_has_not_settled_a_later_one_settles() -> None:
    found = looked_at(3 * PORTION)
    steps = found.settling()
    next(steps)
    assert (len(found.due), len(found.looked)) == (PORTION, 2 * PORTION)
    found.settle()
    assert (len(found.due), len(found.looked)) == (3 * PORTION, 0)


def test_a_set_is_let_go_in_steps() -> None:
    found = FetchSet()
    topics = [
        FetchTopic(f"t{number}", ZERO_UUID, [FetchPartition(0, 0, 1)])
        for number in range(2 * PORTION)
    ]
    found.want(topics, nowhere, is_by_id=False)
    watched = itertools.count()
    for one in found:
        one.unwatch = lambda: next(watched)  # type: ignore[assignment]
    left = [len(found.topics) for _ in found.releasing()]
    assert left == [PORTION, 0]
    assert (found.count, len(found.due), next(watched)) == (0, 0, 2 * PORTION)
