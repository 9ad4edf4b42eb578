"""Plans of retention, and acks merged to ranges: pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.net.kafka_client.client import Place
from penstock.pipeline.archive import ack_ranges
from penstock.pipeline.archive.ack_ranges import floors, islands_of, merge_acks
from penstock.pipeline.archive.retention_plan import (
    DELETE,
    Facts,
    Hold,
    PoliciesInvalid,
    Policy,
    Segment,
    cuts,
    parse_policies,
    plan,
)

NOW_MS = 1_000_000

P = Place("t", 0)


def acked_floor(ranges: Iterable[tuple[int, int]], start: int) -> int:
    """Return the first offset from ``start`` on that is in no range (first, last). Ranges may be
    unordered, overlap and repeat."""
    floor = start
    for first, last in sorted(ranges):
        if first > floor:
            break
        floor = max(floor, last + 1)
    return floor


@dataclass(frozen=True)
class World:
    """A log with everything that may be said of its records, one by one."""

    timestamps: list[int]  # of each record
    edges: list[int]  # where segments end
    committed: dict[str, int]
    acked: dict[
        str, set[int]
    ]  # by cursor: offsets that are done with; others are leased or waiting
    archived: int
    held_from: int | None
    policy: Policy

    @property
    def segments(self) -> list[Segment]:
        cut = sorted({0, len(self.timestamps), *self.edges})
        return [
            Segment(P, base, end, 10 * (end - base), max(self.timestamps[base:end]))
            for base, end in pairwise(cut)
        ]

    @property
    def needs(self) -> dict[str, int]:
        leases = {
            cursor: acked_floor([(offset, offset) for offset in done], 0)
            for cursor, done in self.acked.items()
        }
        return {**self.committed, **leases}

    def is_needed(self, offset: int) -> bool:
        """Record by record, without any of the planner's shortcuts."""
        if self.timestamps[offset] > NOW_MS - self.policy.keep_s * 1_000:
            return True
        if self.held_from is not None and offset >= self.held_from:
            return True
        if self.policy.is_archive_required and offset >= self.archived:
            return True
        if any(offset >= at for at in self.committed.values()):
            return True
        if any(offset not in done for done in self.acked.values()):
            return True
        known = {*self.committed, *self.acked}
        if self.policy.groups is None:
            return not known
        return any(group not in known for group in self.policy.groups)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    count = draw(st.integers(1, 25))
    offsets, times = st.integers(0, count), st.integers(NOW_MS - 9_000, NOW_MS)
    done = st.one_of(offsets.map(lambda n: set(range(n))), st.sets(st.integers(0, count - 1)))
    return World(
        timestamps=draw(st.lists(times, min_size=count, max_size=count)),
        edges=draw(st.lists(offsets, max_size=6)),
        committed=draw(st.dictionaries(st.sampled_from(["a", "b"]), offsets, max_size=2)),
        acked=draw(st.dictionaries(st.sampled_from(["x", "y"]), done, max_size=2)),
        archived=draw(st.one_of(st.just(count), offsets)),
        held_from=draw(st.one_of(st.none(), offsets)),
        policy=Policy(
            topics=draw(st.sampled_from(["t", "*"])),
            keep_s=draw(st.integers(0, 9)),
            groups=draw(st.sampled_from([None, (), ("a",), ("a", "x")])),
            is_archive_required=draw(st.booleans()),
        ),
    )  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(worlds())
def test_nothing_that_is_needed_is_ever_deleted(world: World) -> None:
    facts = Facts(world.segments, {P: world.needs}, {P: world.archived})
    holds = [] if world.held_from is None else [Hold("t", 0, world.held_from)]
    decisions = plan(facts, [world.policy], holds, now_ms=NOW_MS)
    deleted = [
        offset
        for each in decisions
        if each.action == DELETE
        for offset in range(each.segment.base, each.segment.end)
    ]
    assert deleted == list(range(len(deleted))), "a log is cut from its front"
    assert not [offset for offset in deleted if world.is_needed(offset)]
    assert cuts(decisions) == ({P: len(deleted)} if deleted else {})
    # And what is not needed goes: the first segment to stay has something that is.
    first_kept = next((each.segment for each in decisions if each.action != DELETE), None)
    if first_kept is not None:
        assert any(world.is_needed(n) for n in range(first_kept.base, first_kept.end))


def test_each_reason_to_stay_is_told() -> None:
    old = Segment(P, 0, 10, 100, 0)

    def reason(**changed: Any) -> str:
        facts = {"needs": {P: {"g": 10}}, "archived": {P: 10}} | changed.pop("facts", {})
        policies = changed.pop("policies", [Policy("t", 1)])
        (made,) = plan(Facts([old], **facts), policies, changed.pop("holds", []), now_ms=NOW_MS)
        return made.reason

    assert reason() == "no longer needed"
    assert reason(policies=[]) == "no policy"
    assert reason(policies=[Policy("other*", 1)]) == "no policy"
    assert reason(holds=[Hold("*")]) == "held"
    assert reason(holds=[Hold("t", partition=1), Hold("t", 0, 10)]) == "no longer needed"
    assert reason(policies=[Policy("t", NOW_MS)]) == "within retention"
    assert reason(facts={"archived": {P: 9}}) == "not archived"
    assert reason(facts={"needs": {P: {"g": 9}}}) == "needed by g"
    assert reason(facts={"needs": {}}) == "no known reader"
    assert reason(facts={"needs": {}}, policies=[Policy("t", 1, groups=())]) == "no longer needed"
    assert reason(policies=[Policy("t", 1, groups=("never",))]) == "needed by never"
    assert reason(facts={"uncuttable": {"t": "a queue"}}) == "a queue"


def test_policies_are_read_and_their_mistakes_told() -> None:
    policies, holds = parse_policies(
        '[[policy]]\ntopic = "o*"\nkeep_s = 60\ngroups = ["a"]\narchive_required = false\n'
        '[[hold]]\ntopic = "o1"\nfrom_offset = 7\n'
    )
    assert policies == [Policy("o*", 60, ("a",), is_archive_required=False)]
    assert holds == [Hold("o1", None, 7)]
    for text, want in (
        ('[[policy]]\ntopic = "o"', "policy 1: keep_s"),
        ('[[policy]]\ntopic = "o"\nkeep_s = 1\nkep = 2', "unknown key kep"),
        ('[[policy]]\ntopic = "o"\nkeep_s = 1\ngroups = "a"', "groups must be a list"),
        ("[[rules]]", "only tables"),
        ("[[hold]]\n" * 10_001, "10001 tables"),
        ("[[policy", "not valid TOML"),
    ):
        with pytest.raises(PoliciesInvalid, match=want):
            parse_policies(text)


_ranges = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 6)).map(lambda r: (r[0], r[0] + r[1])), max_size=40
)


@settings(max_examples=200, deadline=None)
@given(_ranges, st.booleans(), st.integers(0, 60))
def test_islands_are_the_union_of_their_ranges(
    ranges: list[tuple[int, int]], is_sparse: bool, start: int
) -> None:
    step = 1_000 if is_sparse else 1  # too far apart to be laid out
    first = np.array([a * step for a, _ in ranges], np.int64)
    last = np.array([b * step + step - 1 for _, b in ranges], np.int64)
    begins, ends = islands_of(first, last)
    covered = {n for a, b in ranges for n in range(a, b + 1)}
    assert {
        n for a, b in zip(begins, ends, strict=True) for n in range(a // step, b // step + 1)
    } == covered
    assert all(b + 1 < a for b, a in zip(ends[:-1], begins[1:], strict=True)), "with holes between"
    want = acked_floor([(int(a), int(b)) for a, b in zip(first, last, strict=True)], start * step)
    found = {("t", 0, "c"): (begins, ends)}
    assert floors(found, {P: start * step}) == {P: {"c": want}}


def ack_rows(count: int, *, seed: int = 1) -> pa.Table:
    """Each offset of three partitions acknowledged by two cursors, but for one hole in each; in
    random order and some of it twice."""
    chance = np.random.default_rng(seed)
    parts = []
    for partition in range(3):
        for number, cursor in enumerate(("a", "b")):
            offsets = np.delete(np.arange(count, dtype=np.int64), 100 * (partition + 1) + number)
            offsets = chance.permutation(np.concatenate((offsets, offsets[: count // 10])))
            parts.append(
                pa.table(
                    {
                        "topic": pa.array(["t"] * len(offsets)),
                        "partition": pa.array(np.full(len(offsets), partition, np.int32)),
                        "cursor": pa.array([cursor] * len(offsets)),
                        "first": offsets,
                        "last": offsets,
                    }
                )
            )
    rows = pa.concat_tables(parts)
    return rows.take(chance.permutation(rows.num_rows))


WANT = {Place("t", p): {"a": 100 * (p + 1), "b": 100 * (p + 1) + 1} for p in range(3)}

STARTS = dict.fromkeys(WANT, 0)


def test_rows_of_many_cursors_melt_to_where_each_has_its_first_hole() -> None:
    rows = ack_rows(2_000)
    bad = pa.table(
        {
            "topic": pa.array(["t", None, "t"]),
            "partition": pa.array([0, 0, None], pa.int32()),
            "cursor": pa.array(["a", "a", "a"]),
            "first": pa.array([100, 100, 100], pa.int64()),
            "last": pa.array([99, 100, 100], pa.int64()),
        }
    )
    assert floors(merge_acks([*rows.to_batches(500), bad]), STARTS) == WANT


def test_islands_beyond_the_bound_are_taken_for_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ack_ranges, "ISLANDS_MAX", 3)
    offsets = np.arange(0, 100, 2, dtype=np.int64)
    table = pa.table(
        {"topic": ["t"] * 50, "partition": pa.array([0] * 50, pa.int32()), "cursor": ["a"] * 50,
         "first": offsets, "last": offsets}
    )  # fmt: skip
    (found,) = merge_acks(table.to_batches(10)).values()
    assert found[0].tolist() == [0, 2, 4]
