"""The requests that ``kafka_answers.py`` sends to Apache Kafka and to Penstock, in this order.

A question is the name of an API, a version and the fields of the request. ``EVERY``: each node is
asked, and each reply is compared. ``LEADER``: asked where the partition is led. ``COORDINATOR``:
asked where the group is coordinated. A number: this node is asked.

In fields, ``Id("t")`` stands for the id of topic ``t``, which differs from system to system, and
``Hmac(0)`` for the HMAC of the first delegation token that was created."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from penstock.record.batch import encode_batch
from penstock.record.record import encode_record

EVERY: Final = "every"
LEADER: Final = "leader"
COORDINATOR: Final = "coordinator"
Fields = dict[str, Any]
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2
T0: Final = 1_700_000_000_000


class Id(NamedTuple):
    topic: str


class Hmac(NamedTuple):
    token: int


class Question(NamedTuple):
    api: str
    version: int
    fields: Fields
    at: str | int = EVERY
    of: str = ""  # the topic or group whose leader or coordinator is asked
    note: str = ""
    ignored: frozenset[str] = frozenset()  # fields of the reply that may differ here
    by: str = "root"  # the user who asks, where authentication is on

    @property
    def title(self) -> str:
        return f"{self.api} v{self.version}" + (f", {self.note}" if self.note else "")


def questions(nodes: int) -> Iterator[Question]:
    yield from _features()
    yield from _new_topics(nodes)
    yield from _new_partitions(nodes)
    yield from _records()
    yield from _moves(nodes)
    yield from _configs(nodes)
    yield from _quotas()
    yield from _groups()
    yield from _offsets_topic()
    yield from _streams_groups()
    yield from _patterns()
    yield from _users()
    yield from _ends()


def _features() -> Iterator[Question]:
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


def _new_topics(nodes: int) -> Iterator[Question]:
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


def _new_partitions(nodes: int) -> Iterator[Question]:
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


def _records() -> Iterator[Question]:
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
    commit = {"topics": [{"name": "t", "partitions": [_committed()]}]}
    for version in (8, 9):
        fields = {"group_id": "none", "generation_id_or_member_epoch": 3, "member_id": "m"}
        yield Question(
            "OffsetCommit", version, {**fields, **commit}, at=COORDINATOR, of="none",
            note="unknown group",
        )  # fmt: skip


def _committed() -> Fields:
    return {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}


# ── Moves ────────────────────────────────────────────────────────────────────────────────────


def _moves(nodes: int) -> Iterator[Question]:
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


# ── Configs ──────────────────────────────────────────────────────────────────────────────────


BROKER_NAMES: Final = (
    "default.replication.factor",
    "log.cleaner.backoff.ms",
    "log.retention.ms",
    "message.max.bytes",
    "min.insync.replicas",
    "num.partitions",
    "offsets.topic.num.partitions",
    "offsets.topic.replication.factor",
    "transaction.max.timeout.ms",
)


def _configs(nodes: int) -> Iterator[Question]:
    def describe(note: str, kind: int, name: str, keys: Any = None) -> Question:
        one = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        fields = {"resources": [one], "include_synonyms": True}
        return Question("DescribeConfigs", 4, fields, note=note)

    def alter(note: str, kind: int, name: str, *changes: tuple[str, int, str | None]) -> Question:
        configs = [
            {"name": key, "config_operation": operation, "value": value}
            for key, operation, value in changes
        ]
        one = {"resource_type": kind, "resource_name": name, "configs": configs}
        return Question("IncrementalAlterConfigs", 1, {"resources": [one]}, at=1, note=note)

    yield describe("topic", TOPIC, "t")
    yield describe("unknown topic", TOPIC, "no")
    for note, change in (
        ("set", ("retention.ms", SET, "1000")),
        ("bad value", ("retention.ms", SET, "soon")),
        ("unknown", ("no.such", SET, "1")),
        ("delete", ("retention.ms", DELETE, None)),
        ("append to a number", ("retention.ms", APPEND, "1")),
        ("kept", ("compression.zstd.level", SET, "4")),
        ("kept", ("local.retention.ms", SET, "1000")),
        ("no remote storage", ("remote.storage.enable", SET, "false")),
        ("remote storage", ("remote.storage.enable", SET, "true")),
        ("throttled", ("leader.replication.throttled.replicas", SET, "0:1")),
        ("no policy", ("cleanup.policy", SET, "")),
    ):
        yield alter(f"topic, {change[0]}, {note}", TOPIC, "t", change)
    yield alter("topic, same name twice", TOPIC, "t", *[("retention.ms", SET, "1")] * 2)
    yield alter("unknown topic", TOPIC, "no", ("retention.ms", SET, "1"))
    yield describe("topic, after changes", TOPIC, "t")
    if nodes == 1:
        yield describe("broker", BROKER, "1", list(BROKER_NAMES))
    yield describe("another broker", BROKER, "9")
    for name in ("1", ""):
        yield alter("broker, set", BROKER, name, ("log.retention.ms", SET, "3600000"))
        yield alter("broker, unknown", BROKER, name, ("no.such", SET, "1"))
        yield describe("broker, after changes", BROKER, name, ["log.retention.ms", "no.such"])
        yield alter("broker, read-only", BROKER, name, ("log.dirs", SET, "/x"))
        yield alter("broker, bad value", BROKER, name, ("log.retention.ms", SET, "soon"))
        yield alter("broker, null", BROKER, name, ("log.retention.ms", SET, None))
        yield alter("broker, append to a number", BROKER, name, ("log.retention.ms", APPEND, "1"))
        yield alter("broker, in sync", BROKER, name, ("min.insync.replicas", SET, "1"))
        yield alter("broker, overrides", BROKER, name, (OVERRIDES, SET, "127.0.0.1:9"))
        yield alter("broker, bad overrides", BROKER, name, (OVERRIDES, SET, "127.0.0.1"))
        yield alter("broker, overrides by host", BROKER, name, (OVERRIDES, SET, "localhost:9"))
        yield alter("broker, no overrides", BROKER, name, (OVERRIDES, DELETE, None))
        yield alter("broker, throttle", BROKER, name, (THROTTLE, SET, "1000"))
        yield alter("broker, no throttle", BROKER, name, (THROTTLE, DELETE, None))
        yield alter("broker, delete", BROKER, name, ("log.retention.ms", DELETE, None))
        yield alter("broker, delete unset", BROKER, name, ("log.segment.bytes", DELETE, None))
    yield alter("another broker", BROKER, "9", ("log.retention.ms", SET, "1"))
    yield alter("no broker", BROKER, "x", ("log.retention.ms", SET, "1"))
    yield alter("metrics", METRICS, "m", ("interval.ms", SET, "5000"))
    yield describe("metrics", METRICS, "m")
    for note, change in (
        ("too short", ("interval.ms", SET, "10")),
        ("no number", ("interval.ms", SET, "soon")),
        ("unknown", ("no.such", SET, "1")),
        ("bad match", ("match", SET, "bad")),
        ("match", ("match", SET, "client_id=a")),
    ):
        yield alter(f"metrics, {note}", METRICS, "m", change)
    yield alter("metrics without a name", METRICS, "", ("interval.ms", SET, "5000"))
    yield describe("metrics without a name", METRICS, "")
    yield alter("root logger, delete", LOGGER, "1", ("root", DELETE, None))
    yield alter("logger, unknown", LOGGER, "1", ("no.such.logger", SET, "DEBUG"))
    for name in GROUP_NAMES:
        yield alter(f"group, {name}", GROUP, "g", (name, SET, "7"))
    yield alter("group, read_committed", GROUP, "g", (ISOLATION, SET, "read_committed"))
    yield alter("group, unknown", GROUP, "g", ("no.such", SET, "1"))
    yield describe("group", GROUP, "g")
    for version, types in ((0, None), (1, []), (1, [GROUP]), (1, [TOPIC, BROKER]), (1, [99])):
        fields = {} if types is None else {"resource_types": types}
        yield Question("ListConfigResources", version, fields, note=f"types {types}")


def _quotas() -> Iterator[Question]:
    def alter(note: str, entity: Fields, **ops: float | None) -> Question:
        return changed(note, entity, ops)

    def changed(
        note: str, entity: Fields, ops: Mapping[str, float | None], *, dry: bool = False
    ) -> Question:
        changes = [
            {"key": key, "value": value or 0.0, "remove": value is None}
            for key, value in ops.items()
        ]
        parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
        fields = {"entries": [{"entity": parts, "ops": changes}], "validate_only": dry}
        return Question("AlterClientQuotas", 1, fields, at=1, note=note)

    def describe(
        note: str, *filters: tuple[str, int, str | None], strict: bool = False
    ) -> Question:
        parts = [
            {"entity_type": kind, "match_type": how, "match": name} for kind, how, name in filters
        ]
        fields = {"components": parts, "strict": strict}
        return Question("DescribeClientQuotas", 1, fields, note=note)

    ann: Fields = {"user": "ann"}
    yield alter("user", ann, producer_byte_rate=1e6)
    yield alter("user and client", {**ann, "client-id": "app"}, consumer_byte_rate=1e6)
    yield alter("default user", {"user": None}, request_percentage=50.0)
    yield alter("address", {"ip": "127.0.0.1"}, connection_creation_rate=1e6)
    yield changed("only checked", {"user": "bob"}, {"producer_byte_rate": 1.0}, dry=True)
    yield alter("unknown key", ann, no_such=1.0)
    yield alter("key of addresses", ann, connection_creation_rate=1.0)
    yield alter("unknown type", {"group": "g"}, producer_byte_rate=1.0)
    yield alter("no entity", {}, producer_byte_rate=1.0)
    yield alter("empty name", {"user": ""}, producer_byte_rate=1.0)
    yield alter("address and user", {"ip": "127.0.0.1", "user": "ann"}, producer_byte_rate=1.0)
    yield alter("negative", ann, producer_byte_rate=-1.0)
    yield alter("fraction", ann, producer_byte_rate=1.5)
    yield alter("too large", ann, producer_byte_rate=1e19)
    yield alter("remove unset", {"user": "bob"}, producer_byte_rate=None)
    yield describe("user", ("user", 0, "ann"), strict=True)
    yield describe("user and any client", ("user", 0, "ann"), ("client-id", 2, None))
    yield describe("default user", ("user", 1, None))
    yield describe("addresses", ("ip", 2, None))
    yield describe("nothing, strict", strict=True)
    yield describe("unknown type", ("no.such", 2, None))
    yield describe("unknown match", ("user", 9, None))
    yield describe("exact without a name", ("user", 0, None))
    yield describe("address and user", ("ip", 2, None), ("user", 2, None))
    for entity, key in (
        (ann, "producer_byte_rate"),
        ({**ann, "client-id": "app"}, "consumer_byte_rate"),
        ({"user": None}, "request_percentage"),
        ({"ip": "127.0.0.1"}, "connection_creation_rate"),
    ):
        yield changed("remove", entity, {key: None})
    yield describe("all, after removing")


OVERRIDES: Final = "max.connections.per.ip.overrides"
THROTTLE: Final = "leader.replication.throttled.rate"
ISOLATION: Final = "share.isolation.level"
GROUP_NAMES: Final = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
    "share.session.timeout.ms",
    "share.delivery.count.limit",
    "share.partition.max.record.locks",
    "share.renew.acknowledge.enable",
    "streams.session.timeout.ms",
    "streams.num.standby.replicas",
    "streams.initial.rebalance.delay.ms",
)


# ── Groups, users ────────────────────────────────────────────────────────────────────────────


def _groups() -> Iterator[Question]:
    partition = {"partition_index": 0, "start_offset": 3}
    asked = {"group_id": "fresh", "topics": [{"topic_name": "t", "partitions": [partition]}]}
    yield Question("AlterShareGroupOffsets", 0, asked, at=COORDINATOR, of="fresh", note="new")
    named = {"group_ids": ["fresh", "no"]}
    yield Question("ShareGroupDescribe", 1, named, at=COORDINATOR, of="fresh")
    yield Question("ConsumerGroupDescribe", 1, named, at=COORDINATOR, of="fresh")
    yield Question("DeleteGroups", 2, {"groups_names": ["fresh", "no"]}, COORDINATOR, "fresh")
    joining = {**_joining("null"), "subscribed_topic_names": ["t"], "topic_partitions": None}
    yield Question(
        "ConsumerGroupHeartbeat", 1, joining, at=COORDINATOR, of="null", note="null partitions"
    )


def _offsets_topic() -> Iterator[Question]:
    name = "__consumer_offsets"
    named = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    yield Question("Metadata", 13, named, note=name, ignored=frozenset(("partitions",)))
    keys = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": ["cleanup.policy"]}
    yield Question("DescribeConfigs", 4, {"resources": [keys]}, note=name)
    ends = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}
    fields: Fields = {"replica_id": -1, "topics": [{"name": name, "partitions": [ends]}]}
    yield Question("ListOffsets", 8, fields, at=LEADER, of=name, note=name)
    data = {"name": name, "topic_id": bytes(16)}
    records = [{"index": 0, "records": batch((b"k", T0))}]
    fields = {"transactional_id": None, "acks": -1, "timeout_ms": 10_000}
    fields["topics"] = [{**data, "partitions": records}]
    yield Question("Produce", 12, fields, at=LEADER, of=name, note=name)
    one = {"name": name, "partitions": [{"partition_index": 0, "offset": 0}]}
    fields = {"topics": [one], "timeout_ms": 10_000}
    yield Question("DeleteRecords", 2, fields, at=LEADER, of=name, note=name)
    made = {"name": name, "num_partitions": 1, "replication_factor": 1}
    yield Question("CreateTopics", 7, {"topics": [made]}, at=1, note=name)


PATTERNS: Final = (
    *("(^a.*)", "(^a)|(^b)", "a|^b", "$a", "^*", r"\A.*\z", r"\bx", "(?i)x", "(?s).", "(?P<n>a)"),
    *("(?<n>a)", r"\pL", r"\p{L}+", r"\x41", r"\Qa\E", "a{1000}", "a{,3}", "", "[[:alpha:]]"),
    *("(a", "a++", "a**", "x{2}{3}", "x{2,1}", "a{1001}", r"[a-\d]", r".*\Z", r"\C", r"\1"),
    *("(?=a)", "a\\"),
)


def _joining(group: str) -> Fields:
    fields = {"member_id": "bWVtYmVyLW9mLWdyb3Vw", "rebalance_timeout_ms": 60_000}
    return {"group_id": group, **fields, "topic_partitions": []}


def _patterns() -> Iterator[Question]:
    for number, pattern in enumerate(PATTERNS):
        group = f"p{number}"
        fields = {**_joining(group), "subscribed_topic_regex": pattern}
        yield Question(
            "ConsumerGroupHeartbeat", 1, fields, at=COORDINATOR, of=group,
            note=f"pattern {pattern}",
        )  # fmt: skip


# ── Streams groups ───────────────────────────────────────────────────────────────────────────


def _streams_groups() -> Iterator[Question]:
    def part(name: str, *sources: str, **more: Any) -> Fields:
        fields = {
            "subtopology_id": name,
            "source_topics": list(sources),
            "source_topic_regex": [],
            "state_changelog_topics": [],
            "repartition_sink_topics": [],
            "repartition_source_topics": [],
            "copartition_groups": [],
        }
        return {**fields, **more}

    def topic(name: str, count: int = 0) -> Fields:
        return {"name": name, "partitions": count, "replication_factor": 0, "topic_configs": []}

    def beat(note: str, group: str, epoch: int = 0, *parts: Fields, **more: Any) -> Question:
        is_join = epoch == 0
        nothing: list[Any] | None = [] if is_join else None
        fields = {
            "group_id": group,
            "member_id": "m",
            "member_epoch": epoch,
            "endpoint_information_epoch": -1,
            "rebalance_timeout_ms": 10_000 if is_join else -1,
            "topology": {"epoch": 0, "subtopologies": list(parts)} if parts else None,
            "active_tasks": nothing,
            "standby_tasks": nothing,
            "warmup_tasks": nothing,
            "process_id": "p" if is_join else None,
            **more,
        }
        return Question("StreamsGroupHeartbeat", 0, fields, at=COORDINATOR, of=group, note=note)

    # Penstock's defaults for developers are shorter.
    delays = {"streams.initial.rebalance.delay.ms": "3000", "streams.heartbeat.interval.ms": "5000"}
    configs = [{"name": name, "config_operation": 0, "value": delays[name]} for name in delays]
    groups = [
        {"resource_type": GROUP, "resource_name": name, "configs": configs}
        for name in ("s", "s-bad-13", "s-bad-18")
    ]
    yield Question("IncrementalAlterConfigs", 1, {"resources": groups}, at=1, note="streams groups")
    lines = part("0", "t")
    task = [{"subtopology_id": "0", "partitions": [0]}]
    yield beat("no such group", "s-none", 1)
    wrong: tuple[tuple[str, list[Fields], Fields], ...] = (
        ("static", [lines], {"instance_id": "i"}),
        ("offsets", [lines], {"task_offsets": []}),
        ("end offsets", [lines], {"task_end_offsets": []}),
        ("warm-up tasks", [lines], {"warmup_tasks": task}),
        ("pattern", [part("0", "t", source_topic_regex=["x.*"])], {}),
        ("no member id", [lines], {"member_id": ""}),
        ("empty rack", [lines], {"rack_id": ""}),
        ("no time-out", [lines], {"rebalance_timeout_ms": -1}),
        ("active tasks", [lines], {"active_tasks": task}),
        ("no standby tasks", [lines], {"standby_tasks": None}),
        ("no topology", [], {}),
        ("internal topic", [part("0", "__consumer_offsets")], {}),
        ("invalid name", [part("0", "a/b")], {}),
        ("missing source", [part("0", "no-1", "no-2", "no-3", "no-4")], {}),
        ("no source", [part("0", state_changelog_topics=[topic("s-c")])], {}),
        (
            "changelog with partitions",
            [part("0", "t", state_changelog_topics=[topic("s-c", 3)])],
            {},
        ),
        (
            "loop",
            [
                part(
                    "0",
                    repartition_source_topics=[topic("s-r")],
                    repartition_sink_topics=["s-r"],
                )
            ],
            {},
        ),
        ("no sink", [lines, part("1", repartition_source_topics=[topic("s-r")])], {}),
        ("no subtopology", [], {"topology": {"epoch": 0, "subtopologies": []}}),
        ("negative epoch", [], {"topology": {"epoch": -1, "subtopologies": [lines]}}),
    )
    for number, (note, parts, more) in enumerate(wrong):
        yield beat(note, f"s-bad-{number}", 0, *parts, **more)
    yield beat("leave, epoch -2", "s-none", -2)
    yield beat("epoch -3", "s-none", -3)
    counting = [
        part("0", "t", repartition_sink_topics=["s-by-word"]),
        part(
            "1",
            repartition_source_topics=[topic("s-by-word")],
            state_changelog_topics=[topic("s-counts")],
        ),
    ]
    yield beat("first member", "s", 0, *counting)
    yield beat("other topology", "s", 0, lines, member_id="n")
    newer = {"epoch": 1, "subtopologies": counting}
    yield beat("newer topology", "s", 0, member_id="n", topology=newer)
    yield beat("epoch too high", "s", 9)
    yield beat("unknown member", "s", 1, member_id="x")
    yield beat("one kind of tasks", "s", 1, active_tasks=[])
    yield beat("topology again", "s", 1, *counting)
    yield Question("ListGroups", 5, {"states_filter": [], "types_filter": ["streams"]})
    for group in ("s", "s-none"):
        asked = {"group_ids": [group], "include_authorized_operations": False}
        yield Question("StreamsGroupDescribe", 0, asked, at=COORDINATOR, of=group, note=group)
    named = {"group_ids": ["s"], "include_authorized_operations": False}
    yield Question("ConsumerGroupDescribe", 1, named, at=COORDINATOR, of="s", note="streams group")
    join = {
        "group_id": "s",
        "member_id": "c",
        "member_epoch": 0,
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    yield Question("ConsumerGroupHeartbeat", 1, join, at=COORDINATOR, of="s", note="streams group")
    deleted = {"groups_names": ["s"]}
    yield Question("DeleteGroups", 2, deleted, at=COORDINATOR, of="s", note="streams, not empty")
    yield beat("leave", "s", -1)
    yield Question("DeleteGroups", 2, deleted, at=COORDINATOR, of="s", note="streams")


def _users() -> Iterator[Question]:
    def change(note: str, name: str, salt: bytes, iterations: int = 4_096) -> Question:
        one = {"name": name, "mechanism": 1, "iterations": iterations, "salt": salt}
        fields = {"upsertions": [{**one, "salted_password": b"p" * 32}], "deletions": []}
        return Question("AlterUserScramCredentials", 0, fields, at=1, note=note)

    for note, name, salt, iterations in (
        ("plain", "ann", b"12345678", 4_096),
        ("salt of 4 bytes", "short", b"1234", 4_096),
        ("no salt", "bare", b"", 4_096),
        ("name with a space", "a b", b"12345678", 4_096),
        ("name outside ASCII", "ü", b"12345678", 4_096),
        ("long name", "x" * 100, b"12345678", 4_096),
        ("empty name", "", b"12345678", 4_096),
        ("too few iterations", "few", b"12345678", 4_095),
        ("too many iterations", "many", b"12345678", 16_385),
    ):
        yield change(note, name, salt, iterations)
    yield Question("DescribeUserScramCredentials", 0, {"users": None})
    entity = [{"entity_type": "user", "entity_name": "ann"}]
    for note, key, value, entities in (
        ("set", "producer_byte_rate", 1_000.0, entity),
        ("default", "producer_byte_rate", 1_000.0, [{**entity[0], "entity_name": None}]),
        ("unknown key", "no_such", 1.0, entity),
        ("zero", "producer_byte_rate", 0.0, entity),
        ("unknown entity", "producer_byte_rate", 1.0, [{**entity[0], "entity_type": "no"}]),
        ("no entity", "producer_byte_rate", 1.0, []),
    ):
        ops = [{"key": key, "value": value, "remove": False}]
        fields = {"entries": [{"entity": entities, "ops": ops}], "validate_only": False}
        yield Question("AlterClientQuotas", 1, fields, at=1, note=note)
    part = {"entity_type": "user", "match_type": 2, "match": None}
    yield Question("DescribeClientQuotas", 1, {"components": [part], "strict": False})
    rule = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "host": "*",
        "principal": "User:*",
        "operation": 3,
        "permission_type": 2,
    }
    yield Question("CreateAcls", 3, {"creations": [rule]}, at=1)
    found = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1}
    found["permission_type"] = 1
    yield Question("DescribeAcls", 3, found)
    yield Question("DeleteAcls", 3, {"filters": [found]}, at=1)
    yield Question("CreateDelegationToken", 3, {"renewers": [], "max_lifetime_ms": -1}, at=1)
    yield Question("RenewDelegationToken", 2, {"hmac": b"none", "renew_period_ms": -1}, at=1)
    yield Question("ExpireDelegationToken", 2, {"hmac": b"none", "expiry_time_period_ms": -1}, at=1)
    yield Question("DescribeDelegationToken", 3, {"owners": None})


def _ends() -> Iterator[Question]:
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
