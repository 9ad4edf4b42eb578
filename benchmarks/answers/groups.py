"""Groups, committed offsets, patterns, streams groups."""

from collections.abc import Iterator
from typing import Any, Final

from benchmarks.answers.configs import TOPIC
from benchmarks.answers.question import COORDINATOR, LEADER, UNION, Fields, Question
from benchmarks.answers.topics import T0, batch

PATTERNS: Final = (
    *("(^a.*)", "(^a)|(^b)", "a|^b", "$a", "^*", r"\A.*\z", r"\bx", "(?i)x", "(?s).", "(?P<n>a)"),
    *("(?<n>a)", r"\pL", r"\p{L}+", r"\x41", r"\Qa\E", "a{1000}", "a{,3}", "", "[[:alpha:]]"),
    *("(a", "a++", "a**", "x{2}{3}", "x{2,1}", "a{1001}", r"[a-\d]", r".*\Z", r"\C", r"\1"),
    *("(?=a)", "a\\"),
)


def groups() -> Iterator[Question]:
    partition = {"partition_index": 0, "start_offset": 3}
    asked = {"group_id": "fresh", "topics": [{"topic_name": "t", "partitions": [partition]}]}
    yield Question("AlterShareGroupOffsets", 0, asked, at=COORDINATOR, of="fresh", note="new")
    for group in ("fresh", "no"):
        named = {"group_ids": [group]}
        at = Question("ShareGroupDescribe", 1, named, at=COORDINATOR, of=group, note=group)
        yield at
        yield at._replace(api="ConsumerGroupDescribe")
        yield at._replace(api="DeleteGroups", version=2, fields={"groups_names": [group]})
    joining = {**_joining("null"), "subscribed_topic_names": ["t"], "topic_partitions": None}
    yield Question(
        "ConsumerGroupHeartbeat", 1, joining, at=COORDINATOR, of="null", note="null partitions"
    )


def offsets_topic() -> Iterator[Question]:
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


def _joining(group: str) -> Fields:
    fields = {"member_id": "bWVtYmVyLW9mLWdyb3Vw", "rebalance_timeout_ms": 60_000}
    return {"group_id": group, **fields, "topic_partitions": []}


def patterns() -> Iterator[Question]:
    for number, pattern in enumerate(PATTERNS):
        group = f"p{number}"
        fields = {**_joining(group), "subscribed_topic_regex": pattern}
        yield Question(
            "ConsumerGroupHeartbeat", 1, fields, at=COORDINATOR, of=group,
            note=f"pattern {pattern}",
        )  # fmt: skip


# ── Streams groups ───────────────────────────────────────────────────────────────────────────


def streams_groups() -> Iterator[Question]:
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
    listed = {"states_filter": [], "types_filter": ["streams"]}
    yield Question("ListGroups", 5, listed, at=UNION)
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
