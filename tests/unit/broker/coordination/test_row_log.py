"""Rows as batches, and what compaction leaves of them."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.cursor.groups.harness import Shell, topics_of, view_of
from tests.unit.cursor.groups.streams.streams_topologies import ALL_TASKS
from tests.unit.cursor.groups.streams.streams_topologies import beat as streams_beat
from tests.unit.record.checks import check

from penstock.broker.coordination.row_log import (
    BATCH_ROWS_BYTES_MAX,
    COMPRESSED_BYTES_MIN,
    RowsTooLarge,
    encode_rows,
    portions,
)
from penstock.cursor import coordinator_calls as calls
from penstock.cursor.coordinated_groups import Groups
from penstock.cursor.groups.decision import Decision
from penstock.cursor.groups.settings import STREAMS_DELAY, STREAMS_STANDBYS, GroupSettings
from penstock.cursor.groups.share import ShareHeartbeat
from penstock.cursor.rows import Row
from penstock.model.limits import BATCH_BYTES_MAX
from penstock.record.compression import Codec
from penstock.record.record import iter_records

ROWS = st.lists(
    st.builds(Row, st.binary(min_size=1, max_size=20), st.none() | st.binary(max_size=60_000)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60)
@given(st.lists(ROWS, max_size=12))
def test_rows_come_back_in_order_and_no_decision_is_split(decisions: list[list[Row]]) -> None:
    batches = encode_rows(decisions, wall_ms=1_000)
    found = [[Row(r.key or b"", r.value) for r in iter_records(batch)] for batch in batches]
    assert [row for rows in found for row in rows] == [row for rows in decisions for row in rows]
    ends = {0}
    for rows in decisions:
        ends.add(max(ends) + len(rows))
    count = 0
    for rows in found:
        count += len(rows)
        assert count in ends
    for batch in batches:
        check(batch)


def test_small_decisions_share_a_batch_and_large_ones_close_it() -> None:
    small = [Row(b"k", b"v")]
    large = [Row(b"k", b"v" * BATCH_ROWS_BYTES_MAX)]
    assert len(encode_rows([small] * 100, wall_ms=1)) == 1
    assert len(encode_rows([small, large, small, large], wall_ms=1)) == 2


@settings(max_examples=60)
@given(ROWS, st.integers(1, 100_000))
def test_portions_are_in_order_and_end_as_soon_as_they_are_large(
    rows: list[Row], size_bytes: int
) -> None:
    found = list(portions(rows, size_bytes))
    assert [row for portion in found for row in portion] == rows

    def size(portion: Sequence[Row]) -> int:
        return sum(len(row.key) + len(row.value or b"") for row in portion)

    assert all(size(portion) >= size_bytes for portion in found[:-1])
    assert all(size(portion[:-1]) < size_bytes for portion in found)


def test_only_large_batches_are_compressed() -> None:
    (small,) = encode_rows([[Row(b"k", b"v" * 100)]], wall_ms=1)
    (large,) = encode_rows([[Row(b"k", b"v" * COMPRESSED_BYTES_MIN)]], wall_ms=1)
    assert check(small).codec == Codec.NONE
    assert check(large).codec == Codec.ZSTD
    assert len(large) < 1_000


def test_a_decision_beyond_the_largest_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert BATCH_BYTES_MAX > 1_000
    monkeypatch.setattr("penstock.broker.coordination.row_log.BATCH_BYTES_MAX", 1_000)
    with pytest.raises(RowsTooLarge):
        encode_rows([[Row(b"k", bytes(range(256)) * 4)]], wall_ms=1)


# ── Compaction ───────────────────────────────────────────────────────────────────────────────

TOPICS = topics_of(a=4, b=2)


def lived(topic_id: str = "t") -> list[Row]:
    """Rows of groups of all kinds that were made, changed, changed over and deleted. Offsets are
    those of one topic."""
    shell = Shell()
    first = shell.join("classic")
    shell.sync(first.member_id, first.generation, {first.member_id: b"share"}, group="classic")
    for name in ("modern", "gone"):
        one = shell.beat(TOPICS, "m1", 0, group=name, names=("a",), owned=frozenset())
        two = shell.beat(TOPICS, "m2", 0, group=name, names=("a", "b"), owned=frozenset())
        assert one.assignment is not None
        told = shell.beat(TOPICS, "m1", one.member_epoch, group=name, owned=one.assignment)
        kept = told.assignment if told.assignment is not None else one.assignment
        shell.beat(TOPICS, "m1", told.member_epoch, group=name, owned=kept)
        shell.beat(TOPICS, "m2", two.member_epoch, group=name, owned=two.assignment)
    for number in range(4):
        shell.commit({(topic_id, number % 2): number}, group="plain")
    shell.commit({(topic_id, 3): 9}, group="plain", producer=(5, 0))
    shell.commit({(topic_id, 0): 9}, group="open", producer=(6, 0))
    shell.end_transaction((5, 0), is_commit=True)
    for member in ("m1", "m2"):
        shell.beat(TOPICS, member, -1, group="gone")
    shell.decide(shell.groups.delete_group, calls.DeleteGroup("gone"))
    # From a consumer group to a classic one.
    shell.beat(TOPICS, "m1", 0, group="over", names=("b",), owned=frozenset())
    shell.beat(TOPICS, "m1", -1, group="over")
    shell.join("over")
    share(shell, "shared", "m1", 0)
    share(shell, "shared", "m1", -1)
    share(shell, "shared", "m2", 0)
    stream(shell, topic_id)
    return shell.log


def share(shell: Shell, group: str, member: str, epoch: int) -> None:
    request = ShareHeartbeat(member, epoch, None, ("a",), "", "")
    shell.decide(shell.groups.beat, calls.BeatShare(group, request), TOPICS)


def stream(shell: Shell, topic_id: str) -> None:
    """Streams groups with tasks that are given up, and with standby tasks; one is deleted, and a
    classic group takes its name."""
    for name, value in ((STREAMS_DELAY, "0"), (STREAMS_STANDBYS, "1")):
        shell.decide(shell.groups.change_configs, calls.ChangeConfigs("tasks", {name: value}))
    for group in ("tasks", "reused"):
        streams_beat(shell, "m1", 0, group=group)
        streams_beat(shell, "m2", 0, group=group)
        asked = streams_beat(shell, "m1", 2, group=group)
        assert asked.assignment is not None
        active, standby = asked.assignment
        assert not active >= ALL_TASKS
        streams_beat(shell, "m1", 2, group=group, active=active, standby=standby)
        streams_beat(shell, "m2", 3, group=group)
    shell.commit({(topic_id, 0): 4}, group="tasks", member="m2", generation=3)
    for member in ("m1", "m2"):
        streams_beat(shell, member, -1, group="reused")
    shell.decide(shell.groups.delete_group, calls.DeleteGroup("reused"))
    assert not shell.join("reused").code


def folded(rows: list[Row]) -> dict[str, object]:
    groups = Groups(GroupSettings())
    for key, value in rows:
        groups.replay(key, value, now_ms=1)
    groups.loaded(Decision(now_ms=1))
    return view_of(groups)


def compacted(rows: Sequence[Row], *, keeps_tombstones: bool) -> list[Row]:
    """The last row of each key, where it was."""
    last = {row.key: place for place, row in enumerate(rows)}
    return [
        row
        for place, row in enumerate(rows)
        if last[row.key] == place and (keeps_tombstones or row.value is not None)
    ]


@pytest.mark.parametrize("keeps_tombstones", [True, False])
def test_however_far_the_log_is_compacted_it_says_the_same(keeps_tombstones: bool) -> None:
    rows = lived()
    assert {row.key[0] for row in rows} == set(range(1, 18)), "all kinds"
    expected = folded(rows)
    assert len(expected) >= 7
    for end in range(1, len(rows) + 1):
        clean = compacted(rows[:end], keeps_tombstones=keeps_tombstones)
        assert folded(clean + rows[end:]) == expected
