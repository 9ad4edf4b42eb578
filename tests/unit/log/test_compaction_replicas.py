"""Leader and follower compact the same log, each when it likes: what they hold means the same."""

from itertools import count as counted
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.log.stage import QuickDisk, open_log, sync
from tests.unit.log.test_compaction import DAY_MS, NOW_MS, batches, records, values

from penstock.log.compaction import Compaction, Progress, read_clean_offset
from penstock.log.log import Log
from penstock.log.retention import cleanable
from penstock.model.stream import StreamSettings
from penstock.record.batch import encode_batch, parse_header
from penstock.record.record import RawRecord, encode_record

# What happens, and to what: a key, bytes to copy, which of the two logs, records to lose.
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 4), st.booleans()),
        st.tuples(st.just("put"), st.integers(0, 4), st.booleans()),
        st.tuples(st.just("copy"), st.integers(1, 900), st.booleans()),
        st.tuples(st.just("compact"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("epoch"), st.just(0), st.booleans()),
        st.tuples(st.just("cut"), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("day"), st.just(0), st.booleans()),
    ),
    min_size=20,
    max_size=150,
)


class Pair:
    """Two logs, one of which leads; the other may be out of sync, and then does not lead."""

    def __init__(self, leader: Log, follower: Log) -> None:
        self.leader = leader
        self.follower = follower
        self.now_ms = NOW_MS
        self.epoch = 0
        self.committed = 0
        self._number = counted()

    @property
    def held(self) -> int:
        """What both have."""
        return min(self.leader.end_offset, self.follower.end_offset)

    def commit(self, *, is_alone: bool) -> None:
        """What both have, or, where the follower was taken out of the set, all there is."""
        self.committed = max(self.committed, self.leader.end_offset if is_alone else self.held)

    def put(self, key: int, is_gone: bool, *, at: Log) -> None:
        """Two records; one that says that a key is gone may be among them."""
        pairs = [(f"k{key}", None if is_gone else f"v{next(self._number)}"), ("all", f"{key}")]
        made = [
            encode_record(
                offset_delta=n,
                timestamp_delta=0,
                key=key_.encode(),
                value=None if value is None else value.encode(),
            )
            for n, (key_, value) in enumerate(pairs)
        ]
        batch = encode_batch(
            made,
            base_offset=at.end_offset,
            leader_epoch=self.epoch,
            base_timestamp=self.now_ms,
            max_timestamp=self.now_ms,
        )
        at.append(batch, now_ms=self.now_ms)

    def copy(self, bytes_max: int) -> None:
        """What the leader's log has behind the follower's end, as a fetch brings it."""
        leader, follower = self.leader, self.follower
        found = leader.read(follower.end_offset, bytes_max=bytes_max)
        headers = follower.append_copied(b"".join(found), now_ms=self.now_ms)
        assert not found or headers[-1].next_offset == parse_header(found[-1]).next_offset
        sync(follower)

    def compact(self, log: Log) -> None:
        """As far as is committed and here, the last segment not."""
        sync(log)
        clean_offset = read_clean_offset(log)
        segments = cleanable(
            log.segments(),
            StreamSettings(dirty_ratio_min=0.0, compaction_lag_ms_max=DAY_MS),
            clean_offset=clean_offset,
            up_to=min(self.committed, log.sealed_offset),
            now_ms=self.now_ms,
        )
        if not segments:
            return
        before = values(log)
        compaction = Compaction(
            log,
            segments,
            clean_offset=clean_offset,
            tombstone_ms=DAY_MS,
            now_ms=self.now_ms,
            held_offset=self.held,
        )
        while (progress := compaction.step()) is not Progress.DONE:
            if progress is Progress.SWAP:
                compaction.swap()
        compaction.close()
        assert values(log) == before

    def lead_next(self) -> None:
        """Whoever has everything that is committed may lead."""
        if self.follower.end_offset < self.committed:
            return
        self.epoch += 1
        self.leader, self.follower = self.follower, self.leader
        if self.follower.end_offset > self.leader.end_offset:
            # What nobody else has is cut off, where the two histories part.
            to = self.leader.end_offset
            assert self.follower.truncate(to) == to

    def cut(self, extra: int) -> None:
        """The leader alone writes a little more, and loses it to the other one."""
        if self.follower.end_offset >= self.committed:
            for _ in range(extra):
                self.put(0, False, at=self.leader)
            self.lead_next()


@given(_STEPS)
@settings(max_examples=40, deadline=None)
def test_replicas_compacted_at_different_times_hold_the_same(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    disk = QuickDisk()
    pair = Pair(open_log(folder / "a", disk=disk), open_log(folder / "b", disk=disk))
    for step, number, flag in steps:
        if step == "put":
            pair.put(number, flag, at=pair.leader)
        elif step == "copy":
            pair.copy(number)
        elif step == "compact":
            pair.commit(is_alone=flag)
            pair.compact(pair.follower if number else pair.leader)
        elif step == "epoch":
            pair.lead_next()
        elif step == "cut":
            pair.cut(number)
        else:
            pair.now_ms += DAY_MS + 1  # also when one of them is behind for as long as that
    while pair.follower.end_offset < pair.leader.end_offset:
        pair.copy(500)
    leader, follower = pair.leader, pair.follower
    assert values(leader) == values(follower)
    assert leader.last_epoch == follower.last_epoch
    assert leader.epochs(0) == follower.epochs(0), "where they part can be found by either"
    # Of what neither has compacted, and of keys that are still there, every record is the same.
    clean = max(read_clean_offset(leader), read_clean_offset(follower))
    assert from_offset(leader, clean) == from_offset(follower, clean)
    for log in (leader, follower):
        spans = [(header.base_offset, header.next_offset) for header, _ in batches(log)]
        assert spans[0][0] == 0 if spans else log.end_offset == 0
        assert all(one[1] == two[0] for one, two in pairwise(spans))
    # Compacted once more, both to the end, they have the same keys at the same offsets.
    pair.commit(is_alone=False)
    for log in (leader, follower):
        log.roll(now_ms=pair.now_ms)
        pair.compact(log)
    newest = [
        {record.key: (record.offset, record.value) for record in records(log) if record.value}
        for log in (leader, follower)
    ]
    assert newest[0] == newest[1]
    leader.close(clean=False)
    follower.close(clean=False)


def test_that_a_key_is_gone_is_kept_for_a_copy_that_has_not_heard_of_it(tmp_path: Path) -> None:
    disk = QuickDisk()
    pair = Pair(open_log(tmp_path / "a", disk=disk), open_log(tmp_path / "b", disk=disk))
    leader, follower = pair.leader, pair.follower
    pair.put(1, False, at=leader)
    pair.copy(10_000)
    pair.put(1, True, at=leader)
    for _ in range(3):  # the first writes down until when it stays
        for _ in range(20):
            pair.put(2, False, at=leader)
        pair.commit(is_alone=True)
        pair.compact(leader)
        pair.now_ms += DAY_MS + 1
    assert gone(leader) == [b"k1"]
    assert values(follower).keys() == {b"k1", b"all"}
    while follower.end_offset < leader.end_offset:
        pair.copy(10_000)
    assert values(follower) == values(leader)
    for log in (leader, follower):
        pair.put(2, False, at=leader)
        pair.copy(10_000)
        log.roll(now_ms=pair.now_ms)
        pair.commit(is_alone=False)
        pair.compact(log)
        assert gone(log) == [], "both have it, and it is old"
    assert values(follower) == values(leader)
    assert b"k1" not in values(leader)


def gone(log: Log) -> list[bytes | None]:
    return [record.key for record in records(log) if record.value is None]


def from_offset(log: Log, offset: int) -> list[RawRecord]:
    return [record for record in records(log) if record.offset >= offset]
