"""What may be deleted: never anything that somebody needs, and everything that nobody does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.server import Server
from tests.pipeline.test_audit import context_for
from tests.pipeline.topics import topics_of

from penstock.net.kafka_client import EARLIEST, KafkaClient, Place
from penstock.pipeline import acked
from penstock.pipeline.acked import floors, islands_of, melt, melted, melted_files
from penstock.pipeline.job import JobMisused
from penstock.pipeline.jobs import archive, retention
from penstock.pipeline.retention_plan import (
    DELETE,
    Facts,
    Hold,
    PoliciesInvalid,
    Policy,
    Segment,
    acked_floor,
    cuts,
    parse_policies,
    plan,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 1_000_000
P = Place("t", 0)

# ── The decision ─────────────────────────────────────────────────────────────────────────────────


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

    assert reason() == "done with"
    assert reason(policies=[]) == "no policy"
    assert reason(policies=[Policy("other*", 1)]) == "no policy"
    assert reason(holds=[Hold("*")]) == "held"
    assert reason(holds=[Hold("t", partition=1), Hold("t", 0, 10)]) == "done with"
    assert reason(policies=[Policy("t", NOW_MS)]) == "within retention"
    assert reason(facts={"archived": {P: 9}}) == "not archived"
    assert reason(facts={"needs": {P: {"g": 9}}}) == "needed by g"
    assert reason(facts={"needs": {}}) == "nobody is known to read it"
    assert reason(facts={"needs": {}}, policies=[Policy("t", 1, groups=())]) == "done with"
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
        ('[[policy]]\ntopic = "o"\nkeep_s = 1\nkep = 2', "no kep"),
        ('[[policy]]\ntopic = "o"\nkeep_s = 1\ngroups = "a"', "groups is a list"),
        ("[[rules]]", "only tables"),
        ("[[policy", "not TOML"),
    ):
        with pytest.raises(PoliciesInvalid, match=want):
            parse_policies(text)


# ── Acknowledgements ─────────────────────────────────────────────────────────────────────────────

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
    assert floors(melt([*rows.to_batches(500), bad]), STARTS) == WANT


def test_islands_beyond_the_bound_are_taken_for_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acked, "ISLANDS_MAX", 3)
    offsets = np.arange(0, 100, 2, dtype=np.int64)
    table = pa.table(
        {"topic": ["t"] * 50, "partition": pa.array([0] * 50, pa.int32()), "cursor": ["a"] * 50,
         "first": offsets, "last": offsets}
    )  # fmt: skip
    (found,) = melt(table.to_batches(10)).values()
    assert found[0].tolist() == [0, 2, 4]


def test_executors_and_the_driver_find_the_same(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    rows = ack_rows(3_000)
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=4_000)
    paths = [str(tmp_path / "a.parquet")]
    assert floors(melted_files(spark, paths, tasks=2), STARTS) == WANT
    assert floors(melted(spark.read.parquet(*paths)), STARTS) == WANT
    assert melted_files(spark, [], tasks=2) == {}


# ── With a server ────────────────────────────────────────────────────────────────────────────────


def _topic(server: Server, name: str, config: Mapping[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": server.kafka})
    made = admin.create_topics([NewTopic(name, num_partitions=2, config=dict(config))])
    made[name].result(timeout=30)


def _fill(server: Server, topic: str, counts: tuple[int, int]) -> None:
    producer = Producer({"bootstrap.servers": server.kafka})
    for partition, count in enumerate(counts):
        for n in range(count):
            at_ms = 1_700_000_000_000 + n
            producer.produce(topic, b"v%d" % n, b"k%d" % n, partition=partition, timestamp=at_ms)
    assert producer.flush(120) == 0


def _commit(server: Server, group: str, topic: str, offsets: tuple[int, ...]) -> None:
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": group})
    at = [TopicPartition(topic, n, offset) for n, offset in enumerate(offsets)]
    consumer.commit(offsets=at, asynchronous=False)
    consumer.close()


def test_a_plan_is_printed_then_carried_out_and_no_further(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    keep = {"retention.ms": "-1"}
    _topic(server, "read", keep)
    _topic(server, "compacted", {"cleanup.policy": "compact"})
    _fill(server, "read", (50, 20))
    _fill(server, "compacted", (5, 0))
    _commit(server, "fast", "read", (40, 20))
    _commit(server, "slow", "read", (30,))  # has not come to partition 1
    _commit(server, "fast", "compacted", (5, 0))
    policies = tmp_path / "policies.toml"
    policies.write_text('[[policy]]\ntopic = "*"\nkeep_s = 3600\narchive_required = false\n')
    shown: list[dict[str, Any]] = []

    def run(**arguments: Any) -> list[tuple[Any, ...]]:
        shown.clear()
        given = {"policies": str(policies), **arguments}
        retention.JOB.run(context_for(spark, server, tmp_path, arguments=given, show=shown.extend))
        return [
            (row["topic"], row["partition"], row["to"], row["action"], row["reason"])
            for row in shown
            if row["topic"] in ("read", "compacted")
        ]

    planned = run()
    assert planned == [
        ("compacted", 0, 5, "keep", "compacted: nothing is deleted from its front"),
        ("read", 0, 30, "delete", "done with"),
        ("read", 0, 40, "keep", "needed by slow"),
        ("read", 0, 50, "keep", "needed by fast"),
        ("read", 1, 20, "keep", "needed by slow"),
    ]
    with KafkaClient(server.kafka) as client:
        places = client.places("read")
        assert client.offsets(dict.fromkeys(places, EARLIEST)) == dict.fromkeys(places, 0)
        rows = [row for row in shown if row["action"] == "delete"]
        assert rows[0]["bytes"] > 0
        assert run(apply=True) == planned
        assert {row["outcome"] for row in shown if row["action"] == "delete"} == {"done"}
        begun = client.offsets(dict.fromkeys(places, EARLIEST))
        assert begun == {Place("read", 0): 30, Place("read", 1): 0}
    plans = Path(tmp_path / "lake")
    assert (plans / retention.PLAN / "_delta_log").exists()


def test_acknowledgements_of_other_cursors_are_honoured(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    _topic(server, "leased", {"retention.ms": "-1"})
    _fill(server, "leased", (30, 10))
    policies = tmp_path / "policies.toml"
    policies.write_text('[[policy]]\ntopic = "leased"\nkeep_s = 1\narchive_required = false\n')
    shown: list[dict[str, Any]] = []
    arguments = {"policies": str(policies), "acks": "acks"}
    context = context_for(spark, server, tmp_path, arguments=arguments, show=shown.extend)
    with pytest.raises(JobMisused, match="no table acks"):
        retention.JOB.run(context)
    acks = {"topic": ["leased"] * 3 + ["gone"], "partition": pa.array([0, 0, 0, 0], pa.int32()),
            "cursor": ["w"] * 4, "first": [5, 0, 9, 0], "last": [7, 5, 20, 9]}  # fmt: skip
    context.lake.append_arrow(pa.table(acks), "acks", app="acks:1", batch_id=0)
    retention.JOB.run(context)
    assert [(row["partition"], row["to"], row["action"]) for row in shown] == [
        (0, 8, "delete"),
        (0, 30, "keep"),
        (1, 10, "keep"),
    ]
    # What the archive does not have yet stays.
    shown.clear()
    policies.write_text('[[policy]]\ntopic = "leased"\nkeep_s = 1\n')
    rows = spark.createDataFrame(
        pa.table({"topic": ["leased"] * 6, "partition": pa.array([0] * 6, pa.int32()),
                  "offset": pa.array(range(6), pa.int64())})
    )  # fmt: skip
    context.lake.append(rows, "archive/leased", app="archive:q", batch_id=0, is_tracked=True)
    retention.JOB.run(context)
    assert [(row["partition"], row["to"], row["reason"]) for row in shown] == [
        (0, 6, "done with"),
        (0, 8, "not archived"),
        (0, 30, "not archived"),
        (1, 10, "not archived"),
    ]


def test_a_table_of_a_topic_that_was_deleted_does_not_vouch_for_the_one_with_its_name(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    policies = tmp_path / "policies.toml"
    policies.write_text('[[policy]]\ntopic = "renewed"\nkeep_s = 1\ngroups = []\n')
    shown: list[dict[str, Any]] = []
    planning = context_for(
        spark,
        server,
        tmp_path,
        arguments={"policies": str(policies), "apply": True},
        show=shown.extend,
    )
    keeping = context_for(spark, server, tmp_path, arguments={"topics": "renewed"})

    def run() -> list[tuple[Any, ...]]:
        shown.clear()
        retention.JOB.run(planning)
        return [(row["from"], row["to"], row["reason"], row["outcome"]) for row in shown]

    with topics_of(server.kafka) as topics:
        topics.make("renewed", 1)
        topics.fill("renewed", {0: 20})
        archive.JOB.run(keeping)
        old = keeping.lake.table("archive/renewed").topic_ids("archive")["renewed"]
        topics.delete("renewed")
        topics.make("renewed", 1)
        topics.fill("renewed", {0: 12}, prefix="new")
        assert run() == [(0, 12, "not archived", "")]
        assert len(topics.values("renewed")) == 12
        (keeping.lake.path / "archive/renewed").rename(f"{tmp_path}/lake/archive/renewed.{old[:8]}")
        (tmp_path / "checkpoint").rename(tmp_path / "of the old one")
        archive.JOB.run(keeping)
        assert run() == [(0, 12, "done with", "done")]
        assert topics.values("renewed") == []


def test_what_is_asked_for_is_on_record_before_it_is_done(
    spark: SparkSession, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _topic(server, "noted", {"retention.ms": "-1"})
    _fill(server, "noted", (10, 4))
    policies = tmp_path / "policies.toml"
    policies.write_text(
        '[[policy]]\ntopic = "noted"\nkeep_s = 1\ngroups = []\narchive_required = false\n'
    )
    arguments = {"policies": str(policies), "apply": True}
    context = context_for(spark, server, tmp_path, arguments=arguments)

    def outcomes() -> list[tuple[int, str]]:
        rows = context.lake.table(retention.PLAN).open().to_pyarrow_table().to_pylist()
        return sorted((row["partition"], row["outcome"]) for row in rows)

    def die(client: KafkaClient, wanted: Mapping[Place, int]) -> dict[Place, str]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(retention, "delete_records", die)
        with pytest.raises(KeyboardInterrupt):
            retention.JOB.run(context)
    assert outcomes() == [(0, "asked"), (1, "asked")]
    retention.JOB.run(context)
    assert outcomes() == [(0, "asked"), (0, "done"), (1, "asked"), (1, "done")]
