"""The transaction coordinator: both versions of the protocol, fencing, time-outs, take-over."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.cursor import coordinator_calls as calls
from penstock.cursor.rows import Row
from penstock.cursor.transaction_values import BEFORE, Marker, TxnDecision, TxnReply, TxnState
from penstock.cursor.transactions import (
    EPOCH_MAX,
    ID_CHARS_MAX,
    ID_RETENTION_MS,
    PARTITIONS_MAX,
    TIMEOUT_MS_MAX,
    Transactions,
)
from penstock.wire.kafka.faults import ErrorCode

A, B = ("t", 0), ("t", 1)
TIMEOUT = 60_000
T = TypeVar("T")


@dataclass
class Shell:
    now: int = 0
    coordinator_epoch: int = 1
    log: list[Row] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)
    next_id: int = 100

    def __post_init__(self) -> None:
        self.core = Transactions(coordinator_epoch=self.coordinator_epoch)

    def decide(self, decide: Callable[..., T], *args: object) -> T:
        self.next_id += 1
        decision = TxnDecision(self.now, self.now, self.next_id)
        reply = decide(*args, decision)
        self.log.extend(decision.rows)
        self.markers.extend(decision.markers)
        return reply

    def init(self, name: str = "x", given: tuple[int, int] = (-1, -1), **fields: int) -> TxnReply:
        call = calls.InitProducer(name, *given, fields.get("timeout_ms", TIMEOUT))
        return self.decide(self.core.init, call)

    def add(self, who: tuple[int, int], *partitions: tuple[str, int], name: str = "x") -> ErrorCode:
        return self.decide(self.core.add, calls.AddPartitions(name, *who, partitions)).code

    def end(
        self, who: tuple[int, int], *, is_commit: bool = True, version: int = 2, name: str = "x"
    ) -> TxnReply:
        call = calls.EndTransaction(name, *who, is_commit, version == 2)
        return self.decide(self.core.end, call)

    def tick(self, ms: int = 0) -> None:
        self.now += ms
        self.decide(self.core.tick)

    def deliver(self) -> list[Marker]:
        """All partitions get their markers."""
        sent, self.markers = self.markers, []
        for marker in sent:
            self.decide(self.core.marked, marker)
        return sent

    def state(self, name: str = "x") -> TxnState:
        described = self.core.describe(name)
        assert described is not None
        return described.state

    def replayed(self) -> Transactions:
        core = Transactions(coordinator_epoch=self.coordinator_epoch)
        for row in self.log:
            core.replay(row.key, row.value)
        return core

    def restart(self) -> None:
        self.coordinator_epoch += 1
        self.core = self.replayed()
        self.markers = []
        self.decide(self.core.loaded)

    def check_replay(self) -> None:
        assert self.replayed().view() == self.core.view()


def who(reply: TxnReply) -> tuple[int, int]:
    assert reply.code == ErrorCode.NONE, reply
    return reply.producer_id, reply.producer_epoch


def ongoing(*partitions: tuple[str, int]) -> tuple[Shell, tuple[int, int]]:
    shell = Shell()
    me = who(shell.init())
    assert shell.add(me, *(partitions or (A,))) == ErrorCode.NONE
    return shell, me


# ── InitProducerId ───────────────────────────────────────────────────────────────────────────
def test_a_new_id_begins_with_epoch_zero_and_every_init_raises_it() -> None:
    shell = Shell()
    first = who(shell.init())
    assert first == (101, 0)
    assert who(shell.init()) == (101, 1)
    assert shell.add(first, A) == ErrorCode.PRODUCER_FENCED


def test_an_init_aborts_what_its_predecessor_left_open_and_is_served_after_that() -> None:
    shell, old = ongoing(A, B)
    assert shell.init().code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert shell.init().code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert shell.add(old, A) == ErrorCode.PRODUCER_FENCED
    assert shell.end(old).code == ErrorCode.PRODUCER_FENCED
    markers = shell.deliver()
    assert [(m.topic_id, m.partition) for m in markers] == [A, B]
    assert {(m.producer_epoch, m.is_commit, m.coordinator_epoch) for m in markers} == {
        (1, False, 1)
    }
    assert who(shell.init()) == (old[0], 2)
    shell.check_replay()


def test_a_producer_may_raise_its_own_epoch_and_repeat_the_question() -> None:
    shell = Shell()
    me = who(shell.init())
    raised = who(shell.init(given=me))
    assert raised == (me[0], 1)
    assert who(shell.init(given=me)) == raised
    assert shell.init(given=(me[0], 7)).code == ErrorCode.PRODUCER_FENCED
    assert shell.init(given=(999, 0)).code == ErrorCode.PRODUCER_FENCED


def test_a_producer_that_raises_its_epoch_with_a_transaction_open_may_go_on_after_the_abort() -> (
    None
):
    shell, me = ongoing()
    assert shell.init(given=me).code == ErrorCode.CONCURRENT_TRANSACTIONS
    shell.deliver()
    assert who(shell.init(given=me)) == (me[0], 1)


@pytest.mark.parametrize("timeout_ms", [0, -1, TIMEOUT_MS_MAX + 1])
def test_a_time_out_out_of_bounds_is_refused(timeout_ms: int) -> None:
    assert Shell().init(timeout_ms=timeout_ms).code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("name", ["", "x" * (ID_CHARS_MAX + 1)])
def test_an_id_out_of_bounds_is_refused(name: str) -> None:
    assert Shell().init(name).code == ErrorCode.INVALID_REQUEST


def test_only_so_many_ids_are_kept() -> None:
    shell = Shell()
    shell.core = Transactions(coordinator_epoch=1, ids_max=1)
    assert shell.init("x").code == ErrorCode.NONE
    assert shell.init("y").code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert shell.init("x").code == ErrorCode.NONE


# ── Version 2 ────────────────────────────────────────────────────────────────────────────────
def test_every_end_raises_the_epoch_and_markers_carry_it() -> None:
    shell, me = ongoing(A, B)
    assert who(shell.end(me)) == (me[0], 1)
    assert shell.state() is TxnState.PREPARE_COMMIT
    markers = shell.deliver()
    assert {(m.producer_epoch, m.is_commit) for m in markers} == {(1, True)}
    assert shell.state() is TxnState.COMPLETE_COMMIT
    assert shell.add((me[0], 1), A) == ErrorCode.NONE
    shell.check_replay()


def test_a_repeated_end_gets_the_same_answer() -> None:
    shell, me = ongoing()
    raised = who(shell.end(me))
    assert shell.end(me).code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert shell.end(me, is_commit=False).code == ErrorCode.INVALID_TXN_STATE
    shell.deliver()
    assert who(shell.end(me)) == raised
    assert shell.end(me, is_commit=False).code == ErrorCode.INVALID_TXN_STATE


def test_a_late_end_cannot_hit_the_next_transaction() -> None:
    shell, me = ongoing()
    raised = who(shell.end(me))
    shell.deliver()
    shell.add(raised, B)
    assert shell.end(me).code == ErrorCode.PRODUCER_FENCED
    assert shell.state() is TxnState.ONGOING


def test_the_next_transaction_waits_for_the_markers_of_the_last() -> None:
    shell, me = ongoing()
    raised = who(shell.end(me))
    assert shell.add(raised, A) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert shell.end(raised, is_commit=False).code == ErrorCode.CONCURRENT_TRANSACTIONS
    shell.deliver()
    assert shell.add(raised, A) == ErrorCode.NONE


def test_an_abort_without_a_transaction_raises_the_epoch_and_a_commit_is_refused() -> None:
    shell = Shell()
    me = who(shell.init())
    assert shell.end(me).code == ErrorCode.INVALID_TXN_STATE
    assert who(shell.end(me, is_commit=False)) == (me[0], 1)
    assert shell.state() is TxnState.COMPLETE_ABORT
    assert shell.markers == []
    shell.check_replay()


def test_when_epochs_run_out_a_new_id_goes_on() -> None:
    shell = Shell()
    me = who(shell.init())
    for _ in range(EPOCH_MAX - 1):
        me = who(shell.end(me, is_commit=False))
    assert me == (101, EPOCH_MAX - 1)
    shell.add(me, A)
    fresh = who(shell.end(me))
    assert fresh == (shell.next_id, 0)
    assert shell.add(fresh, A) == ErrorCode.CONCURRENT_TRANSACTIONS
    (marker,) = shell.deliver()
    assert (marker.producer_id, marker.producer_epoch) == (101, EPOCH_MAX)
    assert who(shell.end(me)) == fresh
    assert shell.add(fresh, A) == ErrorCode.NONE
    assert shell.add(me, A) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    shell.check_replay()


def test_fencing_the_last_epoch_leads_to_a_new_id() -> None:
    shell = Shell()
    me = who(shell.init())
    while me[1] < EPOCH_MAX - 1:
        me = who(shell.init())
    shell.add(me, A)
    assert shell.init(given=me).code == ErrorCode.CONCURRENT_TRANSACTIONS
    shell.deliver()
    assert who(shell.init(given=me)) == (shell.next_id, 0)


# ── Version 1 ────────────────────────────────────────────────────────────────────────────────
def test_a_version_1_client_keeps_its_epoch() -> None:
    shell, me = ongoing(A, B)
    assert who(shell.end(me, version=1)) == me
    assert shell.end(me, version=1).code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert shell.end(me, version=1, is_commit=False).code == ErrorCode.INVALID_TXN_STATE
    assert {m.producer_epoch for m in shell.deliver()} == {0}
    assert shell.end(me, version=1).code == ErrorCode.NONE
    assert shell.end(me, version=1, is_commit=False).code == ErrorCode.INVALID_TXN_STATE
    assert shell.add(me, A) == ErrorCode.NONE
    assert who(shell.end(me, version=1, is_commit=False)) == me
    shell.deliver()
    assert shell.state() is TxnState.COMPLETE_ABORT
    shell.check_replay()


def test_a_version_1_end_without_a_transaction_is_refused() -> None:
    shell = Shell()
    me = who(shell.init())
    for is_commit in (True, False):
        assert shell.end(me, version=1, is_commit=is_commit).code == ErrorCode.INVALID_TXN_STATE


def test_a_partition_asks_before_the_first_batch_of_a_version_1_client() -> None:
    shell, me = ongoing(A)

    def verify(who: tuple[int, int], partition: tuple[str, int]) -> ErrorCode:
        return shell.core.verify(calls.VerifyPartition("x", *who, partition))

    assert verify(me, A) == ErrorCode.NONE
    assert verify(me, B) == ErrorCode.TRANSACTION_ABORTABLE
    assert verify((me[0], 5), A) == ErrorCode.PRODUCER_FENCED
    assert verify((1, 0), A) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    shell.end(me, version=1)
    assert verify(me, A) == ErrorCode.CONCURRENT_TRANSACTIONS
    shell.deliver()
    assert verify(me, A) == ErrorCode.TRANSACTION_ABORTABLE


# ── Adding ───────────────────────────────────────────────────────────────────────────────────
def test_adding_again_writes_nothing() -> None:
    shell, me = ongoing(A)
    rows = len(shell.log)
    assert shell.add(me, A) == ErrorCode.NONE
    assert len(shell.log) == rows
    assert shell.add(me, A, B) == ErrorCode.NONE
    assert len(shell.log) == rows + 1


def test_who_is_not_known_is_refused() -> None:
    shell, me = ongoing()
    assert shell.add(me, A, name="other") == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert shell.add((1, 0), A) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert shell.add((me[0], 1), A) == ErrorCode.PRODUCER_FENCED
    assert shell.end((1, 0)).code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert shell.end((-1, -1)).code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_transaction_spans_only_so_many_partitions() -> None:
    shell, me = ongoing()
    many = [("t", p) for p in range(1, PARTITIONS_MAX + 1)]
    assert shell.add(me, *many) == ErrorCode.THROTTLING_QUOTA_EXCEEDED


# ── Time and take-over ───────────────────────────────────────────────────────────────────────
def test_a_transaction_open_for_too_long_is_aborted_under_a_raised_epoch() -> None:
    shell, me = ongoing(A)
    shell.tick(TIMEOUT - 1)
    assert shell.state() is TxnState.ONGOING
    shell.tick(1)
    (marker,) = shell.deliver()
    assert (marker.producer_epoch, marker.is_commit) == (1, False)
    assert shell.end(me).code == ErrorCode.PRODUCER_FENCED
    assert shell.init(given=me).code == ErrorCode.PRODUCER_FENCED
    assert who(shell.init()) == (me[0], 2)
    shell.check_replay()


def test_adding_does_not_prolong_a_transaction() -> None:
    shell, me = ongoing(A)
    shell.tick(TIMEOUT - 1)
    shell.add(me, B)
    shell.tick(1)
    assert shell.state() is TxnState.PREPARE_ABORT


def test_whoever_takes_over_writes_the_markers_again() -> None:
    shell, me = ongoing(A, B)
    shell.end(me)
    first, _ = shell.markers
    shell.decide(shell.core.marked, first)
    assert shell.core._unmarked == {"x": {(first.topic_id, 1)}}
    shell.restart()
    markers = shell.deliver()
    assert [(m.partition, m.is_commit, m.coordinator_epoch) for m in markers] == [
        (0, True, 2),
        (1, True, 2),
    ]
    assert shell.state() is TxnState.COMPLETE_COMMIT
    shell.decide(shell.core.marked, first)  # late, for a transaction that has ended
    assert shell.state() is TxnState.COMPLETE_COMMIT


def test_an_open_transaction_gets_its_time_anew_after_a_restart() -> None:
    shell, _ = ongoing(A)
    shell.now += TIMEOUT - 1
    shell.restart()
    shell.tick(TIMEOUT - 1)
    assert shell.state() is TxnState.ONGOING
    shell.tick(1)
    assert shell.state() is TxnState.PREPARE_ABORT


def test_an_idle_id_is_forgotten_after_a_week() -> None:
    shell, me = ongoing()
    who(shell.init("idle"))
    shell.now += ID_RETENTION_MS + 1
    shell.decide(shell.core.expire)
    found = {name: (txn.producer_id, txn.state) for name, txn in shell.core.view().items()}
    assert found == {"x": (me[0], TxnState.ONGOING)}
    shell.check_replay()


def test_a_row_that_is_not_ours_is_an_error() -> None:
    with pytest.raises(ValueError, match="row"):
        Transactions(coordinator_epoch=1).replay(b"\x09", None)


def test_the_table_has_a_way_out_of_every_state() -> None:
    assert {source for sources in BEFORE.values() for source in sources} == set(TxnState)
    assert BEFORE.keys() == set(TxnState)


# ── Any order of events ──────────────────────────────────────────────────────────────────────
class TransactionMachine(RuleBasedStateMachine):
    """Two clients fight over one id; answers get lost, markers are late, coordinators die."""

    @initialize(version=st.sampled_from([1, 2]))
    def start(self, version: int) -> None:
        self.version = version
        self.shell = Shell()
        self.clients: list[tuple[int, int] | None] = [None, None]
        self.seen: set[tuple[int, int]] = set()
        self.decided: dict[tuple[int, int], bool] = {}
        self.epochs: dict[int, int] = {}

    @rule(number=st.integers(0, 1))
    def init(self, number: int) -> None:
        reply = self.shell.init()
        if reply.code == ErrorCode.NONE:
            mine = who(reply)
            assert mine not in self.seen, "nobody else has ever had this epoch"
            self.seen.add(mine)
            self.clients[number] = mine

    @rule(number=st.integers(0, 1), partition=st.sampled_from([A, B]))
    def add(self, number: int, partition: tuple[str, int]) -> None:
        mine = self.clients[number]
        if mine is not None and self.shell.add(mine, partition) == ErrorCode.PRODUCER_FENCED:
            self.clients[number] = None

    @rule(number=st.integers(0, 1), is_commit=st.booleans(), loses_answer=st.booleans())
    def end(self, number: int, is_commit: bool, loses_answer: bool) -> None:
        mine = self.clients[number]
        if mine is None:
            return
        before = self.shell.state()
        reply = self.shell.end(mine, is_commit=is_commit, version=self.version)
        if reply.code == ErrorCode.NONE and before is TxnState.ONGOING:
            assert self.shell.state() in (
                (TxnState.PREPARE_COMMIT,) if is_commit else (TxnState.PREPARE_ABORT,)
            )
        if reply.code == ErrorCode.NONE and self.version == 2 and not loses_answer:
            self.clients[number] = who(reply)
            self.seen.add(who(reply))
        if reply.code == ErrorCode.PRODUCER_FENCED:
            self.clients[number] = None

    @rule(count=st.integers(1, 4))
    def deliver_some(self, count: int) -> None:
        sent, self.shell.markers = self.shell.markers[:count], self.shell.markers[count:]
        for marker in sent:
            self.shell.decide(self.shell.core.marked, marker)

    @rule(ms=st.sampled_from([1_000, TIMEOUT]))
    def wait(self, ms: int) -> None:
        self.shell.tick(ms)

    @rule()
    def restart(self) -> None:
        self.shell.restart()

    @invariant()
    def replay_gives_the_same_state(self) -> None:
        self.shell.check_replay()

    @invariant()
    def at_most_one_client_is_not_fenced(self) -> None:
        described = self.shell.core.describe("x")
        if described is not None and None not in self.clients:
            current = (described.producer_id, described.epoch)
            assert [c == current for c in self.clients].count(True) <= 1

    @invariant()
    def a_prepared_transaction_has_all_its_markers_under_way(self) -> None:
        described = self.shell.core.describe("x")
        if described is not None and described.state.name.startswith("PREPARE"):
            waiting = self.shell.core._unmarked["x"]
            assert waiting
            assert waiting <= set(described.partitions)
            under_way = {(m.topic_id, m.partition) for m in self.shell.markers}
            assert waiting <= under_way

    @invariant()
    def epochs_rise(self) -> None:
        described = self.shell.core.describe("x")
        if described is not None:
            known = self.epochs.get(described.producer_id, -1)
            assert described.epoch >= known
            self.epochs[described.producer_id] = described.epoch


TestTransactionMachine = TransactionMachine.TestCase
TestTransactionMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
