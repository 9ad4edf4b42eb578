"""What producers and consumers send: coordinators, fetches, offsets, transactions, members."""

from collections.abc import Iterator
from typing import Any, Final

from benchmarks.answers.question import (
    COORDINATOR,
    LEADER,
    TRANSACTION,
    UNION,
    Fields,
    Id,
    Question,
)

NO_ID: Final = b"\x01" * 16
T: Final = Id("t")
UUID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"  # Kafka serves no share session to other member ids
RECORDS: Final = frozenset(("records", "aborted"))  # null or empty: the same to clients


def clients() -> Iterator[Question]:
    yield from _offsets()
    yield from _transactions()
    yield from _classic_members()
    yield from _consumers()
    yield from _shares()
    for types in ([], ["consumer", "Share"], ["odd"]):
        listed = {"states_filter": [], "types_filter": types}
        yield Question("ListGroups", 5, listed, at=UNION, note=f"types {types}")
    listed = {"states_filter": ["empty", "Stable"], "types_filter": []}
    yield Question("ListGroups", 5, listed, at=UNION, note="states")


def lookups() -> Iterator[Question]:
    for note, keys, kind in (
        ("a group", ["g"], 0),
        ("a transactional id", ["x"], 1),
        ("an unknown kind", ["g"], 9),
        ("an empty group id", [""], 0),
        ("none", [], 0),
    ):
        where = frozenset(("node_id",))
        fields = {"key_type": kind, "coordinator_keys": keys}
        yield Question("FindCoordinator", 4, fields, note=note, ignored=where)
    yield Question("FindCoordinator", 3, {"key": "g"}, ignored=frozenset(("node_id",)))
    fields = {"topics": [{"name": "no"}, {"name": "a/b"}], "allow_auto_topic_creation": False}
    fields["include_topic_authorized_operations"] = True
    yield Question("Metadata", 12, fields, note="unknown, with operations")
    for note, timestamp, partition, epoch in (
        ("unknown partition", -1, 9, -1),
        ("newer epoch", -1, 0, 99),
        ("before all", 0, 0, -1),
        ("after all", 2**62, 0, -1),
        ("unknown timestamp", -9, 0, -1),
    ):
        one = {"partition_index": partition, "current_leader_epoch": epoch, "timestamp": timestamp}
        asked = {"replica_id": -1, "topics": [{"name": "t", "partitions": [one]}]}
        yield Question("ListOffsets", 8, asked, at=LEADER, of="t", note=note)
    for note, epoch, current in (
        ("the first epoch", 0, -1),
        ("a later epoch", 99, -1),
        ("newer current epoch", 0, 99),
    ):
        one = {"partition": 0, "leader_epoch": epoch, "current_leader_epoch": current}
        asked = {"replica_id": -1, "topics": [{"topic": "placed", "partitions": [one]}]}
        ignored = frozenset(("leader_epoch",))
        yield Question(
            "OffsetForLeaderEpoch", 4, asked, at=LEADER, of="placed", note=note, ignored=ignored
        )


def fetches() -> Iterator[Question]:
    def fetch(note: str, topic_id: Any = T, partition: int = 0, **more: int) -> Question:
        one = {"index": partition, "offset": 0, "bytes_max": 1_000, **more}
        fields: Fields = {"wait_ms_max": 100, "bytes_min": 0}
        fields["topics"] = [{"name": "", "topic_id": topic_id, "partitions": [one]}]
        return Question("Fetch", 16, fields, at=LEADER, of="t", note=note, ignored=RECORDS)

    yield fetch("deleted offset")
    yield fetch("at the end", offset=30)
    yield fetch("after the end", offset=31)
    yield fetch("negative offset", offset=-1)
    yield fetch("unknown topic", NO_ID)
    yield fetch("unknown partition", partition=9)
    yield fetch("newer epoch", offset=30, current_leader_epoch=99)
    yield fetch("a diverging epoch", offset=30, last_fetched_epoch=99)


def _offsets() -> Iterator[Question]:
    def commit(note: str, version: int = 9, **more: Any) -> Question:
        partition = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
        named = {"topic_id": Id("t")} if version > 9 else {"name": "t"}
        fields: Fields = {
            "group_id": "simple",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
        }
        fields |= {"topics": [{**named, "partitions": [partition]}], **more}
        of = fields["group_id"] or "simple"
        return Question("OffsetCommit", version, fields, at=COORDINATOR, of=of, note=note)

    def fetch(note: str, version: int = 9, group: str = "simple", **more: Any) -> Question:
        named = {"topic_id": Id("t")} if version > 9 else {"name": "t"}
        topics = [{**named, "partition_indexes": [0, 9]}]
        fields = {"groups": [{"group_id": group, "topics": topics, **more}]}
        return Question("OffsetFetch", version, fields, at=COORDINATOR, of=group, note=note)

    yield commit("without members")
    yield commit("by id", 10)
    yield commit("no group", group_id="")
    yield commit("a member that is not there", member_id="m")
    yield commit("unknown topic", topics=[{"name": "no", "partitions": [{"partition_index": 0}]}])
    yield commit("unknown id", 10, topics=[{"topic_id": NO_ID, "partitions": [{}]}])
    long = {"partition_index": 0, "committed_metadata": "x" * 5_000}
    yield commit("long metadata", topics=[{"name": "t", "partitions": [long]}])
    yield fetch("committed")
    yield fetch("by id", 10)
    yield fetch("all", topics=None)
    yield fetch("unknown group", group="no-group")
    yield fetch("a member that is not there", member_id="m", member_epoch=3)
    for note, group, topic in (
        ("unknown group", "no-group", "t"),
        ("unknown topic", "simple", "no"),
        ("committed", "simple", "t"),
    ):
        topics = [{"name": topic, "partitions": [{"partition_index": 0}]}]
        fields = {"group_id": group, "topics": topics}
        yield Question("OffsetDelete", 0, fields, at=COORDINATOR, of=group, note=note)


def _transactions() -> Iterator[Question]:
    def ask(note: str, api: str, version: int, **fields: Any) -> Question:
        more = {"transactional_id": "x", **fields}
        return Question(api, version, more, at=TRANSACTION, of="x", note=note)

    wrong: Fields = {"producer_id": 77, "producer_epoch": 3}
    named = [{"name": "t", "partitions": [0]}]
    empty: Fields = {"transactional_id": "", **wrong}
    yield ask("an empty id", "EndTxn", 5, **empty, committed=True)
    yield ask("an empty id", "AddOffsetsToTxn", 4, **empty, group_id="g")
    yield ask("unknown id", "EndTxn", 5, **wrong, committed=True)
    yield ask("unknown id", "AddOffsetsToTxn", 4, **wrong, group_id="g")
    add = {"v3_and_below_transactional_id": "x", "v3_and_below_producer_id": 77}
    add |= {"v3_and_below_producer_epoch": 3, "v3_and_below_topics": named}
    yield Question("AddPartitionsToTxn", 3, add, at=TRANSACTION, of="x", note="unknown id")
    for note, timeout_ms in (("no time", 0), ("a negative time", -1), ("a long time", 2**30)):
        yield ask(note, "InitProducerId", 5, transaction_timeout_ms=timeout_ms)
    yield ask("an empty id", "InitProducerId", 5, transactional_id="", transaction_timeout_ms=1)
    yield ask("a new id", "InitProducerId", 5, transaction_timeout_ms=60_000)
    yield ask("another producer", "InitProducerId", 5, transaction_timeout_ms=60_000, **wrong)
    yield ask("another producer", "EndTxn", 5, **wrong, committed=True)
    yield ask("another producer", "AddOffsetsToTxn", 4, **wrong, group_id="g")
    yield Question("AddPartitionsToTxn", 3, add, at=TRANSACTION, of="x", note="another producer")
    for one in ("x", "no", ""):
        asked: Fields = {"transactional_ids": [one]}
        yield Question("DescribeTransactions", 0, asked, at=TRANSACTION, of=one or "x", note=one)
    for note, filters in (
        ("all", {}),
        ("unknown state", {"state_filters": ["Odd", "Empty"]}),
        ("pattern", {"transactional_id_pattern": "x.*"}),
        ("bad pattern", {"transactional_id_pattern": "("}),
    ):
        yield Question("ListTransactions", 2, filters, at=TRANSACTION, of="x", note=note)
    partition = {"partition_index": 0, "committed_offset": 1}
    offsets = [{"name": "t", "partitions": [partition]}]
    fields = {"transactional_id": "x", "group_id": "simple", **wrong, "topics": offsets}
    for note, more in (
        ("another producer", {}),
        ("a member that is not there", {"member_id": "m", "generation_id": 3}),
    ):
        asked = {**fields, **more}
        yield Question("TxnOffsetCommit", 4, asked, at=COORDINATOR, of="simple", note=note)
    for topic, index in (("t", 0), ("t", 9), ("no", 0)):
        asked = {"topics": [{"name": topic, "partition_indexes": [index]}]}
        note = f"{topic} {index}"
        yield Question("DescribeProducers", 0, asked, at=LEADER, of="t", note=note)


def _classic_members() -> Iterator[Question]:
    def join(note: str, **more: Any) -> Question:
        fields = {"group_id": "classic", "session_timeout_ms": 10_000, "member_id": ""}
        fields |= {"rebalance_timeout_ms": 10_000, "protocol_type": "consumer"}
        fields |= {"protocols": [{"name": "range", "metadata": b""}], **more}
        return Question("JoinGroup", 9, fields, at=COORDINATOR, of="classic", note=note)

    yield join("no group", group_id="")
    yield join("short session", session_timeout_ms=10)
    yield join("long session", session_timeout_ms=2**31 - 1)
    yield join("no protocol", protocols=[])
    yield join("no type", protocol_type="")
    yield join("unknown member", member_id="m")
    yield join("without a member id")
    yield join("static", group_instance_id="i")._replace(
        ignored=frozenset(("leader", "group_instance_id"))
    )
    yield join("unknown static member", group_instance_id="i", member_id="m")
    at = {"group_id": "classic", "generation_id": 1, "member_id": "m"}
    for group in ("classic", "no-group", ""):
        asked = {**at, "group_id": group}
        of = group or "classic"
        yield Question("Heartbeat", 4, asked, at=COORDINATOR, of=of, note=f"group '{group}'")
        sync = {**asked, "protocol_type": "consumer", "protocol_name": "range"}
        yield Question("SyncGroup", 5, sync, at=COORDINATOR, of=of, note=f"group '{group}'")
        gone = {"group_id": group, "members": [{"member_id": "m"}]}
        yield Question("LeaveGroup", 5, gone, at=COORDINATOR, of=of, note=f"group '{group}'")
    sync |= {"group_id": "classic", "group_instance_id": "i"}
    yield Question("SyncGroup", 5, sync, at=COORDINATOR, of="classic", note="fenced")
    yield Question("SyncGroup", 5, at, at=COORDINATOR, of="classic", note="no protocol")


def _consumers() -> Iterator[Question]:
    def beat(note: str, epoch: int = 0, group: str = "modern", **more: Any) -> Question:
        fields: Fields = {"group_id": group, "member_id": "m", "member_epoch": epoch}
        if epoch == 0:
            fields |= {"rebalance_timeout_ms": 10_000, "topic_partitions": []}
            fields["subscribed_topic_names"] = ["placed"]
        of = group or "modern"
        return Question(
            "ConsumerGroupHeartbeat", 1, {**fields, **more}, at=COORDINATOR, of=of, note=note
        )

    yield beat("no group", group="")
    yield beat("unknown group", 3, group="no-group")
    yield beat("no member id", member_id="")
    yield beat("no time-out", rebalance_timeout_ms=-1)
    yield beat("no subscription", subscribed_topic_names=None)
    yield beat("unknown assignor", server_assignor="odd")
    yield beat("empty instance", instance_id="")
    yield beat("empty rack", rack_id="")
    yield beat("epoch -3", -3)
    yield beat("epoch -2, not static", -2)
    yield beat("a group of another kind", group="classic")
    yield beat("first")
    yield beat("epoch too high", 9)
    yield beat("unknown member", 1, member_id="x")
    named = {"group_ids": ["modern"], "include_authorized_operations": True}
    yield Question("ConsumerGroupDescribe", 1, named, at=COORDINATOR, of="modern", note="modern")
    yield beat("leave", -1)
    yield beat("leave again", -1)


def _shares() -> Iterator[Question]:
    def beat(note: str, epoch: int = 0, group: str = "shared", **more: Any) -> Question:
        fields: Fields = {"group_id": group, "member_id": UUID, "member_epoch": epoch, **more}
        of = group or "shared"
        return Question("ShareGroupHeartbeat", 1, fields, at=COORDINATOR, of=of, note=note)

    def fetch(note: str, epoch: int, **more: Any) -> Question:
        fields = {"group_id": "shared", "member_id": UUID, "share_session_epoch": epoch}
        fields |= {"max_wait_ms": 100, "max_records": 10, "batch_size": 10, **more}
        return Question("ShareFetch", 1, fields, at=LEADER, of="placed", note=note, ignored=RECORDS)

    names: Fields = {"subscribed_topic_names": ["placed"]}
    yield beat("no group", group="", **names)
    yield beat("unknown group", 3, group="no-group")
    yield beat("no member id", member_id="", **names)
    yield beat("no subscription")
    yield beat("empty rack", rack_id="", **names)
    yield beat("epoch -3", -3)
    yield beat("first", **names)
    yield beat("epoch too high", 9)
    yield beat("unknown member", 1, member_id="x")
    topics = [{"topic_id": Id("placed"), "partitions": [{"partition_index": 0}]}]
    yield fetch("no group", 0, group_id=None)
    yield fetch("no session", 3)
    yield fetch("first", 0, topics=topics)
    yield fetch("second", 1)
    yield fetch("wrong epoch", 7)
    yield fetch("end", -1)
    yield fetch("unknown topic", 0, topics=[{**topics[0], "topic_id": NO_ID}])
    yield fetch("end", -1)
    acks = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [9]}
    bad = [{**topics[0], "partitions": [{"partition_index": 0, "acknowledgement_batches": [acks]}]}]
    fields = {"group_id": "shared", "member_id": UUID, "share_session_epoch": 3, "topics": bad}
    yield Question("ShareAcknowledge", 1, fields, at=LEADER, of="placed", note="no session")
    everything = {"groups": [{"group_id": "no-group", "topics": None}]}
    yield Question(
        "DescribeShareGroupOffsets", 0, everything, at=COORDINATOR, of="no-group", note="all topics"
    )
    for group in ("shared", "no-group"):
        asked = {"topic_name": "placed", "partitions": [0]}
        described = {"groups": [{"group_id": group, "topics": [asked]}]}
        ignored = frozenset(("start_offset", "lag"))
        yield Question(
            "DescribeShareGroupOffsets", 0, described, at=COORDINATOR, of=group, note=group,
            ignored=ignored,
        )  # fmt: skip
        deleted = {"group_id": group, "topics": [{"topic_name": "placed"}]}
        yield Question("DeleteShareGroupOffsets", 0, deleted, at=COORDINATOR, of=group, note=group)
    yield beat("leave", -1)
