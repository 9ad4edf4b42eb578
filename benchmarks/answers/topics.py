"""Topics, partitions, records, moves, features."""

from collections.abc import Iterator
from typing import Any, Final

from benchmarks.answers.question import COORDINATOR, LEADER, Fields, Id, Question
from penstock.record.batch import encode_batch
from penstock.record.record import encode_record

T0: Final = 1_700_000_000_000


def features() -> Iterator[Question]:
    client = {"client_software_name": "answers", "client_software_version": "1"}
    for version in (3, 4):
        yield Question("ApiVersions", version, client)
    yield Question("DescribeCluster", 2, {"include_fenced_brokers": True})
    yield Question("DescribeQuorum", 2, _quorum("__cluster_metadata"))
    yield Question("DescribeQuorum", 2, _quorum("other"), note="another topic")
    yield Question("DescribeQuorum", 2, {"topics": []}, note="no topic")


def _quorum(topic: str) -> Fields:
    return {"topics": [{"topic_name": topic, "partitions": [{"partition_index": 0}]}]}


# ── Topics ───────────────────────────────────────────────────────────────────────────────────


def new_topics(nodes: int) -> Iterator[Question]:
    def create(note: str, *topics: Fields, **more: Any) -> Question:
        fields = {"topics": list(topics), **more}
        ignored = frozenset(() if note == "plain" else ("configs",))
        return Question("CreateTopics", 7, fields, at=1, note=note, ignored=ignored)

    def topic(name: str, count: int = -1, copies: int = -1, **configs: str) -> Fields:
        pairs = [{"name": key.replace("_", "."), "value": text} for key, text in configs.items()]
        fields = {"num_partitions": count, "replication_factor": copies, "configs": pairs}
        return {"name": name, **fields}

    def placed(name: str, *replicas: list[int], first: int = 0, **more: Any) -> Fields:
        given = [
            {"partition_index": first + number, "broker_ids": ids}
            for number, ids in enumerate(replicas)
        ]
        return {**topic(name), "assignments": given, **more}

    everywhere = list(range(1, nodes + 1))
    yield create("plain", topic("t", 2))
    yield create("compacted", topic("compacted", 1, cleanup_policy="compact"))
    yield create("aged", topic("aged", 1, message_timestamp_before_max_ms="3600000"))
    yield create("again", topic("t", 2))
    yield create("twice in one request", topic("twice", 1), topic("twice", 1))
    yield create("only checked", topic("checked", 1), validate_only=True)
    yield create("bad name", topic("a/b", 1), topic("", 1), topic(".", 1), topic("x" * 250, 1))
    yield create("no partition", topic("zero", 0))
    yield create("too many copies", topic("copies", 1, nodes + 1))
    yield create("unknown config", topic("config", 1, no_such="1"))
    yield create("bad value", topic("value", 1, retention_ms="soon"))
    yield create("replicas given", placed("placed", everywhere, everywhere[1:] + everywhere[:1]))
    yield create("one replica given", placed("single", [1], [1]))
    yield create("unknown node", placed("unknown", [9]))
    yield create("node twice", placed("repeated", [1, 1]))
    yield create("no replica", placed("empty", []))
    yield create("gap in the indexes", placed("gap", [1], first=1))
    yield create("lists of different length", placed("uneven", everywhere, [1, 1]))
    yield create("replicas and a count", placed("both", [1], num_partitions=1))
    named = [{"name": name} for name in ("t", "placed", "single", "compacted")]
    yield Question("Metadata", 13, {"topics": named, "allow_auto_topic_creation": False})
    for note, asked in (
        ("by id, name null", [{"topic_id": Id("t"), "name": None}]),
        ("by id, name empty", [{"topic_id": Id("t"), "name": ""}]),
        ("by id, wrong name", [{"topic_id": Id("t"), "name": "wrong"}]),
        ("unknown id", [{"topic_id": b"\x01" * 16, "name": None}]),
        ("ids and names", [{"topic_id": Id("t"), "name": None}, {"name": "placed"}]),
    ):
        fields = {"topics": asked, "allow_auto_topic_creation": False}
        yield Question("Metadata", 13, fields, note=note)
    yield Question("DescribeTopicPartitions", 0, {"topics": [{"name": "t"}, {"name": "no"}]})


def new_partitions(nodes: int) -> Iterator[Question]:
    def grow(note: str, count: int, assignments: Any = None, name: str = "t") -> Question:
        given = None if assignments is None else [{"broker_ids": ids} for ids in assignments]
        one = {"name": name, "count": count, "assignments": given}
        fields = {"topics": [one], "timeout_ms": 10_000}
        return Question("CreatePartitions", 3, fields, at=1, note=note)

    everywhere = list(range(1, nodes + 1))
    yield grow("fewer", 1)
    yield grow("as many", 2)
    yield grow("unknown topic", 3, name="no")
    yield grow("no assignment", 3, [])
    yield grow("unknown node", 3, [[*everywhere[1:], 9]])
    yield grow("two lists for one", 3, [everywhere, everywhere])
    yield grow("replicas given", 3, [everywhere])
    yield Question("Metadata", 13, {"topics": [{"name": "t"}]}, note="after CreatePartitions")


# ── Records ──────────────────────────────────────────────────────────────────────────────────


def batch(*records: tuple[bytes | None, int]) -> bytes:
    """A batch of records, each with a key and a timestamp."""
    first = records[0][1]
    encoded = [
        encode_record(offset_delta=at, timestamp_delta=ms - first, key=key, value=b"v", headers=())
        for at, (key, ms) in enumerate(records)
    ]
    latest = max(ms for _, ms in records)
    return bytes(
        encode_batch(
            encoded,
            base_offset=0,
            leader_epoch=-1,
            base_timestamp=first,
            max_timestamp=latest,
            attributes=0,
        )
    )


def records() -> Iterator[Question]:
    def produce(note: str, topic: str, *records: tuple[bytes | None, int]) -> Iterator[Question]:
        partition = {"index": 0, "records": batch(*records)}
        for version in (7, 8, 12):
            data = [{"name": topic, "topic_id": bytes(16), "partitions": [partition]}]
            fields = {"transactional_id": None, "acks": -1, "timeout_ms": 10_000, "topics": data}
            yield Question("Produce", version, fields, at=LEADER, of=topic, note=note)

    def delete(offset: int, topic: str = "t") -> Question:
        one = {"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}
        fields = {"topics": [one], "timeout_ms": 10_000}
        return Question("DeleteRecords", 2, fields, at=LEADER, of="t", note=f"{topic} to {offset}")

    def offsets(note: str) -> Iterator[Question]:
        for what, timestamp in (("earliest", -2), ("latest", -1), ("newest", -3)):
            one = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
            fields = {"replica_id": -1, "topics": [{"name": "t", "partitions": [one]}]}
            yield Question("ListOffsets", 8, fields, at=LEADER, of="t", note=f"{what}, {note}")

    yield from produce("plain", "t", *[(b"k", T0)] * 10)
    yield from produce("keyless, compacted", "compacted", (b"a", T0), (None, T0), (b"", T0))
    yield from produce("too old", "aged", (b"a", T0), (b"b", T0))
    yield from offsets("30 records")
    for offset in (7, 8, 99, -1):
        yield delete(offset)
        yield from offsets(f"after a delete to {offset}")
    yield delete(1, "no")
    commit = {"topics": [{"name": "t", "partitions": [committed()]}]}
    for version in (8, 9):
        fields = {"group_id": "none", "generation_id_or_member_epoch": 3, "member_id": "m"}
        yield Question(
            "OffsetCommit", version, {**fields, **commit}, at=COORDINATOR, of="none",
            note="unknown group",
        )  # fmt: skip


def committed() -> Fields:
    return {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}


# ── Moves ────────────────────────────────────────────────────────────────────────────────────


def moves(nodes: int) -> Iterator[Question]:
    def move(note: str, replicas: list[int] | None, name: str = "single", **more: Any) -> Question:
        one = {"partition_index": 0, "replicas": replicas}
        fields = {"topics": [{"name": name, "partitions": [one]}], "timeout_ms": 10_000, **more}
        version = 1 if more else 0
        return Question("AlterPartitionReassignments", version, fields, at=1, note=note)

    def elect(note: str, kind: int, topics: Any) -> Question:
        fields = {"election_type": kind, "topic_partitions": topics, "timeout_ms": 10_000}
        return Question("ElectLeaders", 2, fields, at=1, note=note)

    listed = Question("ListPartitionReassignments", 0, {"topics": None, "timeout_ms": 10_000})
    yield listed
    yield move("nothing to cancel", None)
    yield move("unknown topic", [1], "no")
    yield move("unknown node", [9])
    yield move("no replica", [])
    yield move("node twice", [1, 1])
    yield move("where it is", [1])
    if nodes > 1:
        yield move("another count, not allowed", [1, 2], allow_replication_factor_change=False)
    asked = [{"topic": "placed", "partitions": [0]}, {"topic": "no", "partitions": [0]}]
    yield elect("preferred", 0, asked)
    yield elect("unclean", 1, asked)
    yield elect("unknown kind", 7, asked)
    ignored = frozenset(("partition_size", "log_dir", "total_bytes", "usable_bytes", "offset_lag"))
    named = {"topics": [{"topic": "placed", "partitions": [0, 1]}]}
    yield Question("DescribeLogDirs", 4, named, ignored=ignored)
    for note, path, name in (("another folder", "/no", "t"), ("unknown", "/no", "no")):
        dirs = [{"path": path, "topics": [{"name": name, "partitions": [0]}]}]
        yield Question("AlterReplicaLogDirs", 2, {"dirs": dirs}, note=note)


# ── Features, deleted topics ─────────────────────────────────────────────────────────────────


def ends() -> Iterator[Question]:
    for note, name, level in (("unknown", "no.such", 1), ("too high", "group.version", 99)):
        update = {"feature": name, "max_version_level": level, "upgrade_type": 1}
        fields = {"feature_updates": [update], "timeout_ms": 10_000, "validate_only": False}
        yield Question("UpdateFeatures", 1, fields, at=1, note=note)
    yield Question("UnregisterBroker", 0, {"broker_id": 9}, at=1, note="unknown")
    for note, topic in (
        ("unknown name", {"name": "no"}),
        ("unknown id", {"name": None, "topic_id": b"\x01" * 16}),
        ("by id", {"name": None, "topic_id": Id("t")}),
    ):
        fields = {"topics": [topic], "timeout_ms": 10_000}
        yield Question("DeleteTopics", 6, fields, at=1, note=note)
