"""Share sessions against a simple model: epochs, what a member holds, what its acknowledgements
mean."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.frontend.kafka.sessions.share_sessions import (
    CLOSING,
    EPOCH_MAX,
    HELD_MAX,
    PLACES_MAX,
    Ack,
    ShareSession,
    ShareSessions,
    are_valid,
)
from penstock.frontend.kafka.shares.share_fetch import ranges
from penstock.model.message import Claim
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.share_fetch import AcknowledgementBatch

TOPIC = bytes(16)
PLACE = (TOPIC, 0)
OWNER = object()


def ack_batch(
    first: int, last: int, types: tuple[int, ...] = (Ack.ACCEPT,)
) -> AcknowledgementBatch:
    return AcknowledgementBatch(first, last, types)


def opened(sessions: ShareSessions, member: str = "m") -> ShareSession:
    session = sessions.open("g", member, OWNER)
    assert isinstance(session, ShareSession)
    return session


def held(session: ShareSession) -> dict[int, int]:
    return {claim.offset: claim.lease_seq for _, claims in session.held() for claim in claims}


# ── Epochs ───────────────────────────────────────────────────────────────────────────────────
def test_a_session_goes_on_from_epoch_to_epoch() -> None:
    sessions = ShareSessions()
    session = opened(sessions)
    assert sessions.go_on("g", "m", 2) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert sessions.go_on("g", "m", 1) is session
    assert sessions.go_on("g", "m", 1) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert sessions.go_on("g", "m", CLOSING) is session
    assert sessions.go_on("g", "m", 2) is session, "a closing request leaves the epoch alone"
    assert sessions.go_on("g", "other", 1) is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert sessions.go_on("other", "m", 1) is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_epochs_begin_again_at_one() -> None:
    sessions = ShareSessions()
    session = opened(sessions)
    session.epoch = EPOCH_MAX
    assert sessions.go_on("g", "m", EPOCH_MAX) is session
    assert sessions.go_on("g", "m", 1) is session


def test_a_closed_session_makes_room() -> None:
    sessions = ShareSessions(sessions_max=1)
    session = opened(sessions)
    assert sessions.open("g", "n", OWNER) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert sessions.owned_by(OWNER) == [session]
    assert sessions.owned_by(object()) == []
    sessions.close(session)
    assert not session.is_open
    assert sessions.go_on("g", "m", 1) is ErrorCode.SHARE_SESSION_NOT_FOUND
    newer = opened(sessions)
    sessions.close(session)  # again, late
    assert sessions.find("g", "m") is newer


def test_a_tenant_has_a_share_of_the_sessions_and_the_nodes_own_has_all() -> None:
    own = "000000000000"
    sessions = ShareSessions(sessions_max=20, own_account=own)

    def opened_by(account: str, count: int) -> int:
        found = (sessions.open("g", str(n), OWNER, account=account) for n in range(count))
        return sum(isinstance(each, ShareSession) for each in found)

    assert opened_by("1", 5) == 2
    assert opened_by("2", 1) == 1
    assert opened_by(own, 30) == 17
    mine = sessions.find("g", "0", account="1")
    assert mine is not None
    sessions.close(mine)
    assert isinstance(sessions.open("g", "x", OWNER, account="1"), ShareSession)


# ── What it reads ────────────────────────────────────────────────────────────────────────────
def test_no_partition_is_always_served_last() -> None:
    session = opened(ShareSessions())
    places = [(TOPIC, n) for n in range(3)]
    assert session.places() == []
    assert session.add(places)
    firsts = set()
    for epoch in range(1, 4):
        session.epoch = epoch
        assert sorted(session.places()) == places
        firsts.add(session.places()[0])
    assert firsts == set(places)
    session.forget([(TOPIC, 1), (TOPIC, 9)])
    assert sorted(session.places()) == [(TOPIC, 0), (TOPIC, 2)]


def test_a_session_takes_no_more_partitions_than_it_may() -> None:
    session = opened(ShareSessions())
    assert session.add((TOPIC, n) for n in range(PLACES_MAX))
    assert session.add([(TOPIC, 0)])
    assert not session.add([(TOPIC, PLACES_MAX)])
    assert len(session) == PLACES_MAX


# ── What its member holds ────────────────────────────────────────────────────────────────────
def test_leases_that_have_ended_make_room() -> None:
    session = opened(ShareSessions())
    session.hold(PLACE, [(n, n, 1) for n in range(HELD_MAX - 1)], ends_at_ms=10)
    session.hold(PLACE, [(HELD_MAX, 1, 1)], ends_at_ms=20)
    assert session.room(PLACE, now_ms=9) == 0
    assert session.room((TOPIC, 1), now_ms=9) == HELD_MAX
    assert session.room(PLACE, now_ms=10) == HELD_MAX - 1
    assert held(session) == {HELD_MAX: 1}


def test_a_later_lease_of_the_same_record_is_the_one_that_counts() -> None:
    session = opened(ShareSessions())
    session.hold(PLACE, [(5, 1, 1)], ends_at_ms=10)
    session.hold(PLACE, [(5, 8, 2)], ends_at_ms=20)
    plan = session.plan(PLACE, [ack_batch(5, 5)])
    assert plan is not None
    assert plan.accepted == [Claim(0, 5, 8)]


@pytest.mark.parametrize("ack", [Ack.ACCEPT, Ack.RELEASE, Ack.REJECT, Ack.RENEW])
def test_a_range_as_long_as_numbers_go_is_answered_at_once(ack: Ack) -> None:
    session = opened(ShareSessions())
    session.hold(PLACE, [(5, 1, 1)], ends_at_ms=10)
    assert session.plan(PLACE, [ack_batch(0, 2**62, (ack,))]) is None


def test_gaps_may_name_what_is_not_held() -> None:
    session = opened(ShareSessions())
    session.hold(PLACE, [(5, 1, 1), (7, 2, 1)], ends_at_ms=10)
    plan = session.plan(PLACE, [ack_batch(0, 2**62, (Ack.GAP,))])
    assert plan is not None
    assert plan.accepted == [Claim(0, 5, 1), Claim(0, 7, 2)]
    plan = session.plan(PLACE, [ack_batch(5, 7, (Ack.RELEASE, Ack.GAP, Ack.REJECT))])
    assert plan is not None
    assert (plan.released, plan.rejected) == ([Claim(0, 5, 1)], [Claim(0, 7, 2)])
    assert plan.accepted == []


@pytest.mark.parametrize(
    ("batches", "is_right"),
    [
        ([], True),
        ([ack_batch(0, 0), ack_batch(1, 5)], True),
        ([ack_batch(0, 2, (1, 2, 3))], True),
        ([ack_batch(0, 1, (4,))], False),
        ([ack_batch(0, 1, (5,))], False),
        ([ack_batch(0, 1, (-1,))], False),
        ([ack_batch(0, 1, ())], False),
        ([ack_batch(0, 1, (1, 1, 1))], False),
        ([ack_batch(1, 0)], False),
        ([ack_batch(-1, 0)], False),
        ([ack_batch(0, 4), ack_batch(4, 5)], False),
        ([ack_batch(5, 6), ack_batch(1, 2)], False),
    ],
)
def test_batches_that_contradict_themselves_are_refused(
    batches: list[AcknowledgementBatch], is_right: bool
) -> None:
    assert are_valid(batches, is_renewal=False) is is_right


def test_records_are_renewed_only_by_a_request_that_says_so() -> None:
    assert are_valid([ack_batch(0, 1, (Ack.RENEW,))], is_renewal=True)


# ── Ranges ───────────────────────────────────────────────────────────────────────────────────
@settings(max_examples=100)
@given(st.dictionaries(st.integers(0, 40), st.integers(1, 3)), st.integers(0, 5))
def test_ranges_name_each_record_once_with_its_count(
    attempts: dict[int, int], length_max: int
) -> None:
    picks = [(offset, 0, attempts[offset]) for offset in sorted(attempts)]
    found = ranges(picks, length_max)
    named = [(o, count) for first, last, count in found for o in range(first, last + 1)]
    assert named == [(offset, attempt) for offset, _, attempt in picks]
    assert not length_max or all(last - first < length_max for first, last, _ in found)
    if not length_max:
        for (_, last, count), (first, _, other) in pairwise(found):
            assert last + 1 != first or count != other, "neighbours are joined"


def test_a_count_beyond_its_field_stays_at_the_most() -> None:
    assert ranges([(0, 0, 70_000)], 0) == [(0, 0, 32_767)]


# ── Against a model ──────────────────────────────────────────────────────────────────────────
class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.session = opened(ShareSessions())
        self.model: dict[int, int] = {}
        self.seq = 0

    @rule(offsets=st.sets(st.integers(0, 12), max_size=4))
    def lease(self, offsets: set[int]) -> None:
        picks = []
        for offset in sorted(offsets):
            self.seq += 1
            picks.append((offset, self.seq, 1))
            self.model[offset] = self.seq
        self.session.hold(PLACE, picks, ends_at_ms=100)

    @rule(
        first=st.integers(0, 12),
        length=st.integers(1, 6),
        acks=st.lists(st.integers(0, 4), min_size=6, max_size=6),
        is_each=st.booleans(),
    )
    def acknowledge(self, first: int, length: int, acks: list[int], is_each: bool) -> None:
        types = tuple(acks[:length]) if is_each else (acks[0],)
        batch = ack_batch(first, first + length - 1, types)
        assert are_valid([batch], is_renewal=True)
        plan = self.session.plan(PLACE, [batch])
        meant = {first + n: types[n] if is_each else types[0] for n in range(length)}
        if any(o not in self.model and ack != Ack.GAP for o, ack in meant.items()):
            assert plan is None
            return
        assert plan is not None
        expected: dict[str, list[Claim]] = {}
        names = ("accepted", "accepted", "released", "rejected", "renewed")
        for offset, ack in meant.items():
            if offset in self.model:
                claim = Claim(0, offset, self.model[offset])
                expected.setdefault(names[ack], []).append(claim)
        for name in set(names):
            assert getattr(plan, name) == expected.get(name, [])
        for claims in (plan.accepted, plan.rejected, plan.released):
            self.session.let_go(PLACE, claims)
            for claim in claims:
                del self.model[claim.offset]

    @precondition(lambda self: bool(self.model))
    @rule()
    def end(self) -> None:
        for place, claims in tuple(self.session.held()):
            self.session.let_go(place, claims)
        self.model.clear()

    @invariant()
    def holds_the_same(self) -> None:
        assert held(self.session) == self.model


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=30)
