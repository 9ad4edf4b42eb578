"""Idempotent producers and transactions, as one partition sees them."""

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from penstock.cursor.producers import (
    APPEND,
    IDLE_MS_MAX,
    SEQUENCE_COUNT,
    Aborted,
    Duplicate,
    Producers,
    Refused,
    Verdict,
)
from penstock.model.errors import Damaged
from penstock.record.batch import ATTR_CONTROL, ATTR_TRANSACTIONAL, BatchHeader
from penstock.wire.kafka.faults import ErrorCode

LAST = SEQUENCE_COUNT - 1


def batch(
    sequence: int,
    *,
    count: int = 1,
    producer: int = 7,
    epoch: int = 0,
    offset: int = 0,
    attributes: int = 0,
) -> BatchHeader:
    return BatchHeader(
        offset, 49, 0, 2, 0, attributes, count - 1, 0, 0, producer, epoch, sequence, count
    )


@dataclass
class Log:
    """A partition that appends what it is told to."""

    producers: Producers
    end: int = 0
    now: int = 0

    def send(
        self,
        sequence: int,
        *,
        count: int = 1,
        producer: int = 7,
        epoch: int = 0,
        is_open: bool = False,
    ) -> Verdict:
        attributes = ATTR_TRANSACTIONAL if is_open else 0
        header = batch(
            sequence,
            count=count,
            producer=producer,
            epoch=epoch,
            offset=self.end,
            attributes=attributes,
        )
        verdict = self.producers.check(header, wall_ms=self.now)
        if verdict is APPEND:
            self.producers.appended(header, at_ms=self.now)
            self.end += count
        return verdict

    def mark(
        self, *, producer: int = 7, epoch: int = 0, is_commit: bool, coordinator: int = 0
    ) -> None:
        attributes = ATTR_TRANSACTIONAL | ATTR_CONTROL
        header = batch(-1, producer=producer, epoch=epoch, offset=self.end, attributes=attributes)
        self.producers.marked(
            header, is_commit=is_commit, coordinator_epoch=coordinator, at_ms=self.now
        )
        self.end += 1


@pytest.fixture
def log() -> Log:
    return Log(Producers())


def refused(code: ErrorCode) -> Refused:
    return Refused(code)


# ── Sequences ────────────────────────────────────────────────────────────────────────────────
def test_a_batch_sent_twice_is_answered_with_its_first_offset(log: Log) -> None:
    log.send(0, count=3)
    log.send(3, count=2)
    assert log.send(0, count=3) == Duplicate(0)
    assert log.send(3, count=2) == Duplicate(3)
    assert log.end == 5


def test_a_gap_is_refused(log: Log) -> None:
    log.send(0)
    assert log.send(2) == refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def test_a_batch_cut_differently_is_refused(log: Log) -> None:
    log.send(0, count=3)
    log.send(3, count=3)
    assert log.send(0, count=2) == refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert log.send(2, count=2) == refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def test_five_batches_are_remembered_and_older_ones_known_as_such(log: Log) -> None:
    for sequence in range(7):
        log.send(sequence)
    assert log.send(2) == Duplicate(2)
    assert log.send(1) == refused(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)


def test_an_old_epoch_is_refused_and_a_new_one_begins_at_zero(log: Log) -> None:
    log.send(0, epoch=3)
    assert log.send(1, epoch=2) == refused(ErrorCode.INVALID_PRODUCER_EPOCH)
    assert log.send(1, epoch=4) == refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert log.send(0, epoch=4) is APPEND
    assert log.send(1, epoch=4) is APPEND


def test_a_producer_nobody_knows_may_begin_anywhere(log: Log) -> None:
    assert log.send(41) is APPEND
    assert log.send(42) is APPEND


def test_a_negative_sequence_is_refused(log: Log) -> None:
    assert log.send(-1) == refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def test_sequences_begin_again_after_the_last(log: Log) -> None:
    log.send(LAST - 1, count=4)  # LAST - 1, LAST, 0, 1
    assert log.send(LAST - 1, count=4) == Duplicate(0)
    assert log.send(2) is APPEND
    assert log.send(LAST - 5, count=2) == refused(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    other = Log(Producers())
    other.send(LAST)
    assert other.send(1) == refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert other.send(0) is APPEND


def test_producers_do_not_see_each_other(log: Log) -> None:
    log.send(0, producer=1)
    log.send(0, producer=2)
    assert log.send(1, producer=1) is APPEND
    assert log.send(0, producer=2) == Duplicate(1)


def test_batches_without_a_producer_pass(log: Log) -> None:
    assert log.send(-1, producer=-1, epoch=-1) is APPEND
    assert len(log.producers._producers) == 0
    assert log.send(-1, producer=-1, is_open=True) == refused(ErrorCode.INVALID_TXN_STATE)


def test_a_silent_producer_is_forgotten_after_a_day(log: Log) -> None:
    log.send(0)
    log.now = IDLE_MS_MAX
    assert log.send(5) is APPEND
    assert log.send(5) == Duplicate(1)
    assert log.send(0) == refused(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)  # its past is unknown now
    log.now *= 2
    assert log.producers.expire(wall_ms=log.now) == 1
    assert len(log.producers._producers) == 0


def test_only_the_silent_without_an_open_transaction_expire(log: Log) -> None:
    log.send(0, producer=1, is_open=True)
    log.send(0, producer=2)
    log.now = 1
    log.send(0, producer=3)
    assert log.producers.expire(wall_ms=IDLE_MS_MAX) == 1
    assert log.producers.is_in_transaction(1, 0)
    assert log.send(0, producer=3) == Duplicate(2)
    assert log.producers.expire(wall_ms=IDLE_MS_MAX + 1) == 1
    assert len(log.producers._producers) == 1


def test_so_many_producers_are_kept_the_longest_silent_go() -> None:
    log = Log(Producers(producers_max=2))
    log.send(0, producer=1, is_open=True)
    log.send(0, producer=2)
    log.send(0, producer=3)
    assert len(log.producers._producers) == 2
    assert log.send(0, producer=3) == Duplicate(2)
    assert log.send(9, producer=2) is APPEND  # forgotten; the one with a transaction is not
    assert log.producers.is_in_transaction(1, 0)


# ── Transactions ─────────────────────────────────────────────────────────────────────────────
def test_readers_of_committed_records_stop_at_the_oldest_open_transaction(log: Log) -> None:
    log.send(0, producer=1)
    log.send(0, producer=2, is_open=True)
    log.send(0, producer=3, is_open=True)
    assert log.producers.last_stable_offset(log.end) == 1
    log.mark(producer=2, is_commit=True)
    assert log.producers.last_stable_offset(log.end) == 2
    log.mark(producer=3, is_commit=True)
    assert log.producers.last_stable_offset(log.end) == log.end


def test_a_marker_counts_only_once_it_is_committed(log: Log) -> None:
    log.send(0, is_open=True)
    log.send(1, is_open=True)
    log.mark(is_commit=True)
    assert log.producers.last_stable_offset(2) == 0
    assert log.producers.last_stable_offset(3) == 3


def test_many_uncommitted_markers_are_counted_as_one() -> None:
    log = Log(Producers())
    for sequence in range(1_500):
        log.send(sequence, is_open=True)
        log.mark(is_commit=True)
    assert log.producers.last_stable_offset(1) == 0
    assert log.producers.last_stable_offset(log.end) == log.end


def test_aborted_transactions_are_listed_for_the_range_they_touch(log: Log) -> None:
    log.send(0, producer=1, is_open=True)  # 0
    log.send(0, producer=2, is_open=True)  # 1
    log.mark(producer=2, is_commit=False)  # 2
    log.send(1, producer=1, is_open=True)  # 3
    log.mark(producer=1, is_commit=False)  # 4
    log.send(1, producer=2, is_open=True)  # 5
    log.mark(producer=2, is_commit=True)  # 6
    first, second = Aborted(1, 0, 4, 5), Aborted(2, 1, 2, 0)
    assert log.producers.aborted_between(0, 7) == [first, second]
    assert log.producers.aborted_between(3, 7) == [first]
    assert log.producers.aborted_between(0, 1) == [first]
    assert log.producers.aborted_between(5, 7) == []
    log.producers.trim(3)
    assert log.producers.aborted_between(0, 7) == [first]


def test_aborted_transactions_without_records_are_forgotten_and_others_still_found(
    log: Log,
) -> None:
    for number in range(6):  # batches at 0, 2, 4 …, markers behind them
        log.send(number, is_open=True)
        log.mark(is_commit=False)
    log.producers.forget_aborted({(7, 2, 3), (7, 8, 9), (7, 4, 99), (8, 0, 1)})
    found = log.producers.aborted_between(0, log.end)
    assert [each.first_offset for each in found] == [0, 4, 6, 10]
    assert [each.first_offset for each in log.producers.aborted_between(5, 7)] == [4, 6]
    assert log.producers.aborted_between(8, 10) == []


def test_a_plain_batch_inside_a_transaction_is_refused(log: Log) -> None:
    log.send(0, is_open=True)
    assert log.send(1) == refused(ErrorCode.INVALID_TXN_STATE)


def test_sequences_go_on_over_a_marker_of_the_same_epoch(log: Log) -> None:
    log.send(0, is_open=True)
    log.mark(is_commit=True)
    assert log.send(1, is_open=True) is APPEND


def test_a_marker_with_a_raised_epoch_fences_what_comes_late(log: Log) -> None:
    log.send(0, is_open=True)
    log.mark(epoch=1, is_commit=True)
    assert log.send(1, is_open=True) == refused(ErrorCode.INVALID_PRODUCER_EPOCH)
    assert log.send(3, epoch=1, is_open=True) == refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert log.send(0, epoch=1, is_open=True) is APPEND


def test_a_marker_for_a_producer_without_a_batch_here_is_harmless(log: Log) -> None:
    log.mark(producer=9, is_commit=False)
    assert log.producers.aborted_between(0, 9) == []
    assert log.producers.last_stable_offset(1) == 1


def test_markers_from_the_past_are_refused(log: Log) -> None:
    log.send(0, epoch=2, is_open=True)
    log.mark(epoch=2, is_commit=True, coordinator=5)
    check = log.producers.check_marker
    assert check(7, 1, 5) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert check(7, 2, 4) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert check(7, 2, 5) == ErrorCode.NONE
    assert check(8, 0, 0) == ErrorCode.NONE


def test_no_transaction_begins_where_too_many_were_aborted() -> None:
    log = Log(Producers(aborted_max=2))
    for producer in (1, 2):
        log.send(0, producer=producer, is_open=True)
    assert log.send(0, producer=3, is_open=True) == refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    for producer in (1, 2):
        assert log.send(1, producer=producer, is_open=True) is APPEND
        log.mark(producer=producer, is_commit=False)
    assert log.send(0, producer=3, is_open=True) == refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    forgotten = log.producers.aborted_between(0, 1)
    log.producers.forget_aborted(
        {(a.producer_id, a.first_offset, a.last_offset) for a in forgotten}
    )
    assert log.send(0, producer=3, is_open=True) is APPEND
    log.mark(producer=3, is_commit=False)
    assert log.send(0, producer=4, is_open=True) == refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    log.producers.trim(log.end)
    assert log.send(0, producer=4, is_open=True) is APPEND


# ── Snapshot and replay ──────────────────────────────────────────────────────────────────────
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "resend", "txn", "commit", "abort", "raise"]),
        st.integers(1, 3),
        st.integers(1, 3),
    ),
    max_size=40,
)


@given(STEPS, st.integers(0, 40))
@settings(max_examples=120, deadline=None)
def test_a_scan_and_a_snapshot_give_the_same_state(
    steps: list[tuple[str, int, int]], cut: int
) -> None:
    live = Log(Producers(producers_max=2))
    scanned: list[tuple[BatchHeader, bool | None]] = []
    next_sequence = dict.fromkeys((1, 2, 3), 0)
    epochs = dict.fromkeys((1, 2, 3), 0)
    restored: Producers | None = None
    for index, (step, producer, count) in enumerate(steps):
        if index == cut:
            data = live.producers.snapshot(wall_ms=0)
            restored = Producers.restore(data, wall_ms=0, producers_max=2)
            assert restored.snapshot(wall_ms=0) == data
        offset, epoch = live.end, epochs[producer]
        if step in ("commit", "abort"):
            flags = ATTR_TRANSACTIONAL | ATTR_CONTROL
            header = batch(-1, producer=producer, epoch=epoch, offset=offset, attributes=flags)
            scanned.append((header, step == "commit"))
        elif step == "raise":
            epochs[producer] += 1
            next_sequence[producer] = 0
            continue
        else:
            sequence = next_sequence[producer] - (count if step == "resend" else 0)
            flags = ATTR_TRANSACTIONAL if step == "txn" else 0
            header = batch(
                sequence,
                count=count,
                producer=producer,
                epoch=epoch,
                offset=offset,
                attributes=flags,
            )
            if live.producers.check(header, wall_ms=0) is not APPEND:
                continue
            next_sequence[producer] = sequence + count
            scanned.append((header, None))
        for producers in (live.producers, restored):
            if producers is not None:
                feed(producers, *scanned[-1])
        live.end += header.last_offset_delta + 1
    again = Producers(producers_max=2)
    for header, is_commit in scanned:
        feed(again, header, is_commit)
    expected = live.producers.snapshot(wall_ms=0)
    assert again.snapshot(wall_ms=0) == expected
    assert restored is None or restored.snapshot(wall_ms=0) == expected
    assert live.producers.last_stable_offset(live.end) == first_undecided(scanned, live.end)


def feed(producers: Producers, header: BatchHeader, is_commit: bool | None) -> None:
    if is_commit is None:
        producers.appended(header, at_ms=0)
    else:
        producers.marked(header, is_commit=is_commit, coordinator_epoch=0, at_ms=0)


def first_undecided(scanned: list[tuple[BatchHeader, bool | None]], end: int) -> int:
    """The same, found the slow way."""
    first: dict[int, int] = {}
    for header, is_commit in scanned:
        if is_commit is not None:
            first.pop(header.producer_id, None)
        elif header.attributes & ATTR_TRANSACTIONAL:
            first.setdefault(header.producer_id, header.base_offset)
    return min(first.values(), default=end)


def test_a_damaged_snapshot_is_reported() -> None:
    data = Producers().snapshot(wall_ms=0)
    for broken in (b"", b"XXXX" + data[4:], data[:-1] + b"\x00", data[:-1]):
        with pytest.raises(Damaged):
            Producers.restore(broken, wall_ms=0)
