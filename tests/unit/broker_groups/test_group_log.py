"""Rows as batches, and what compaction leaves of them."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.group_log import (
    BATCH_ROWS_BYTES_MAX,
    COMPRESSED_BYTES_MIN,
    RowsTooLarge,
    encode_rows,
    portions,
)
from penstock.cursor.group.classic_state import JoinReply, JoinRequest, SyncRequest
from penstock.cursor.group.consumer import ConsumerHeartbeat, ConsumerReply, Topics
from penstock.cursor.group.decision import Decision
from penstock.cursor.group.groups import Groups
from penstock.cursor.group.offsets import CommitRequest, PartitionCommit
from penstock.cursor.group.rows import Row
from penstock.cursor.group.settings import GroupSettings
from penstock.model.limits import BATCH_BYTES_MAX
from penstock.record.batch import check
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
    monkeypatch.setattr("penstock.broker.group_log.BATCH_BYTES_MAX", 1_000)
    with pytest.raises(RowsTooLarge):
        encode_rows([[Row(b"k", bytes(range(256)) * 4)]], wall_ms=1)


# ── Compaction ───────────────────────────────────────────────────────────────────────────────

TOPICS = Topics(1, {"a": ("aa", 4), "b": ("bb", 2)})


class Scene:
    """A coordinator's decisions, with all their rows in a list."""

    def __init__(self) -> None:
        self.groups = Groups(GroupSettings(initial_delay_ms=0))
        self.log: list[tuple[Row, ...]] = []

    def take(self, decision: Decision) -> object:
        if decision.rows:
            self.log.append(decision.rows)
        return decision.answers[-1].reply if decision.answers else None

    def beat(self, group: str, member: str, epoch: int, **fields: object) -> ConsumerReply:
        if not epoch:
            fields.setdefault("owned", frozenset())
        request = ConsumerHeartbeat(member, epoch, rebalance_ms=60_000, **fields)  # type: ignore[arg-type]
        reply = self.take(
            self.groups.consumer_heartbeat(group, request, TOPICS, ticket=1, now_ms=1, wall_ms=1)
        )
        assert isinstance(reply, ConsumerReply)
        assert not reply.code
        return reply

    def commit(self, group: str, partition: int, offset: int, producer: int | None = None) -> None:
        request = CommitRequest((PartitionCommit("aa", partition, offset),))
        if producer is None:
            decision = self.groups.commit(group, request, ticket=1, now_ms=1, wall_ms=1)
        else:
            decision = self.groups.commit_in_transaction(
                group,
                request,
                producer_id=producer,
                producer_epoch=0,
                ticket=1,
                now_ms=1,
                wall_ms=1,
            )
        self.take(decision)


def lived() -> Scene:
    """Groups of both kinds that were made, changed, changed over and deleted."""
    scene = Scene()
    request = JoinRequest(
        "", "m1", 10_000, 10_000, "consumer", (("range", b"x"),), confirms_id=False
    )
    joined = scene.take(scene.groups.join("classic", request, ticket=1, now_ms=1, wall_ms=1))
    assert isinstance(joined, JoinReply)
    sync = SyncRequest("m1", joined.generation, assignments=(("m1", b"share"),))
    scene.take(scene.groups.sync("classic", sync, ticket=1, now_ms=1, wall_ms=1))
    for name in ("modern", "gone"):
        one = scene.beat(name, "m1", 0, topic_names=("a",), owned=frozenset())
        two = scene.beat(name, "m2", 0, topic_names=("a", "b"), owned=frozenset())
        assert one.assignment is not None
        told = scene.beat(name, "m1", one.member_epoch, owned=one.assignment)
        kept = told.assignment if told.assignment is not None else one.assignment
        scene.beat(name, "m1", told.member_epoch, owned=kept)
        scene.beat(name, "m2", two.member_epoch, owned=two.assignment)
    for n in range(4):
        scene.commit("plain", n % 2, n)
    scene.commit("plain", 3, 9, producer=5)
    scene.commit("open", 0, 9, producer=6)
    scene.take(scene.groups.complete_transaction(5, 0, is_commit=True, ticket=1, wall_ms=1))
    for member in ("m1", "m2"):
        scene.beat("gone", member, -1)
    scene.take(scene.groups.delete_group("gone", ticket=1))
    # From assigned here to classic.
    scene.beat("over", "m1", 0, topic_names=("b",), owned=frozenset())
    scene.beat("over", "m1", -1)
    scene.take(scene.groups.join("over", request, ticket=1, now_ms=1, wall_ms=1))
    return scene


def folded(rows: list[Row]) -> dict[str, object]:
    groups = Groups(GroupSettings())
    for key, value in rows:
        groups.replay(key, value, now_ms=1)
    groups.loaded(now_ms=1)
    return groups.view()


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
    rows = [row for decision in lived().log for row in decision]
    expected = folded(rows)
    assert len(expected) >= 5
    for end in range(1, len(rows) + 1):
        clean = compacted(rows[:end], keeps_tombstones=keeps_tombstones)
        assert folded(clean + rows[end:]) == expected
