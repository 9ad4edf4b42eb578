import json

import msgspec
import pytest

from penstock.frontend.aws.sqs.rules.queue_attributes import (
    TABLE,
    changed,
    first_difference,
    read_new,
    requested,
    show,
)
from penstock.model.topic import DedupScope, Fsync, Kind, QueueStats, Topic
from penstock.wire.aws.faults import Fault

TARGET = "arn:aws:sqs:us-east-1:000000000000:dead"
POLICY = json.dumps({"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "*"}]})


def queue(name: str = "q", **attributes: str) -> Topic:
    if name.endswith(".fifo"):
        attributes["FifoQueue"] = "true"
    new = read_new(name, attributes)
    return Topic(
        topic_id="0" * 32,
        account="000000000000",
        region="us-east-1",
        name=name,
        kind=new.kind,
        partition_count=new.partition_count or 1,
        created_at_ms=1_700_000_000_123,
        modified_at_ms=1_700_000_001_999,
        receipt_key=b"",
        fsync=new.fsync,
        settings=new.settings,
        dedup_scope=new.settings.dedup_scope,
    )


def shown(topic: Topic, *names: str) -> dict[str, str]:
    rows = requested(names or ("All",), is_fifo=topic.is_fifo)
    return show(rows, topic, QueueStats(visible=1, in_flight=2, delayed=3))


def refused(code: str, name: str = "q", **attributes: str) -> str:
    with pytest.raises(Fault) as raised:
        read_new(name, attributes)
    assert raised.value.code == code, raised.value
    return raised.value.message


# ── Showing ──────────────────────────────────────────────────────────────────────────────────
def test_there_are_21_documented_attributes_and_two_of_our_own() -> None:
    assert len(TABLE) == 23
    assert [row.name for row in TABLE.values() if row.is_ours] == [
        "PenstockPartitions",
        "PenstockFsync",
    ]


def test_all_of_a_new_standard_queue() -> None:
    assert shown(queue()) == {
        "QueueArn": "arn:aws:sqs:us-east-1:000000000000:q",
        "CreatedTimestamp": "1700000000",
        "LastModifiedTimestamp": "1700000001",
        "ApproximateNumberOfMessages": "1",
        "ApproximateNumberOfMessagesNotVisible": "2",
        "ApproximateNumberOfMessagesDelayed": "3",
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "ReceiveMessageWaitTimeSeconds": "0",
        "VisibilityTimeout": "30",
        "SqsManagedSseEnabled": "true",
    }


def test_a_fifo_queue_shows_four_more() -> None:
    more = shown(queue("q.fifo")).items() - shown(queue("q")).items()
    assert dict(more) == {
        "QueueArn": "arn:aws:sqs:us-east-1:000000000000:q.fifo",
        "FifoQueue": "true",
        "ContentBasedDeduplication": "false",
        "DeduplicationScope": "queue",
        "FifoThroughputLimit": "perQueue",
    }


def test_ours_are_shown_when_asked_for_by_name() -> None:
    topic = queue(PenstockPartitions="4", PenstockFsync="never")
    assert shown(topic, "PenstockPartitions", "PenstockFsync") == {
        "PenstockPartitions": "4",
        "PenstockFsync": "never",
    }
    assert shown(queue(), "PenstockFsync") == {}


def test_asking_for_an_unknown_attribute_is_a_fault_and_for_an_absent_one_is_not() -> None:
    assert shown(queue(), "Policy", "RedrivePolicy", "DeduplicationScope") == {}
    with pytest.raises(Fault) as raised:
        shown(queue(), "Colour")
    assert raised.value.code == "InvalidAttributeName"


def test_nothing_asked_nothing_shown() -> None:
    assert requested((), is_fifo=False) == []


# ── Values ───────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("DelaySeconds", 0, 900),
        ("MaximumMessageSize", 1_024, 1_048_576),
        ("MessageRetentionPeriod", 60, 1_209_600),
        ("ReceiveMessageWaitTimeSeconds", 0, 20),
        ("VisibilityTimeout", 0, 43_200),
        ("KmsDataKeyReusePeriodSeconds", 60, 86_400),
        ("PenstockPartitions", 1, 64),
    ],
)
def test_numbers_have_a_range(name: str, low: int, high: int) -> None:
    for value in (low, high):
        assert shown(queue(**{name: str(value)}), name) == {name: str(value)}
    for text in (str(low - 1), str(high + 1), "", "x", "1.5", " 60", "٦٠", "9" * 30):
        assert refused("InvalidAttributeValue", **{name: text}) == (
            f"Invalid value for the parameter {name}."
        )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SqsManagedSseEnabled", "yes"),
        ("PenstockFsync", "sometimes"),
        ("Policy", "not json"),
        ("Policy", "[]"),
    ],
)
def test_values_of_the_wrong_kind_are_refused(name: str, text: str) -> None:
    refused("InvalidAttributeValue", **{name: text})


@pytest.mark.parametrize(
    ("name", "text"), [("DeduplicationScope", "topic"), ("FifoThroughputLimit", "none")]
)
def test_values_of_fifo_attributes_are_checked(name: str, text: str) -> None:
    refused("InvalidAttributeValue", "q.fifo", FifoQueue="true", **{name: text})


def test_a_standard_queue_takes_no_fifo_attributes() -> None:
    told = refused("InvalidAttributeName", ContentBasedDeduplication="true")
    assert told == "Unknown Attribute ContentBasedDeduplication."
    for name in ("DeduplicationScope", "FifoThroughputLimit"):
        told = refused("InvalidAttributeName", **{name: "queue"})
        assert told == f"You can specify the {name} only when FifoQueue is set to true."


@pytest.mark.parametrize("name", ["QueueArn", "ApproximateNumberOfMessages", "Colour"])
def test_what_cannot_be_set_is_unknown(name: str) -> None:
    refused("InvalidAttributeName", **{name: "1"})
    with pytest.raises(Fault) as raised:
        changed(queue(), {name: "1"}, now_ms=0)
    assert raised.value.code == "InvalidAttributeName"


def test_ids_that_count_for_a_whole_fifo_queue_keep_it_in_one_partition() -> None:
    """Also where the server's default is more: a duplicate in another group must be found."""
    assert read_new("q.fifo", {"FifoQueue": "true"}).partition_count == 1
    text = refused("InvalidAttributeValue", "q.fifo", FifoQueue="true", PenstockPartitions="4")
    assert "DeduplicationScope" in text
    divided = {"FifoQueue": "true", "DeduplicationScope": "messageGroup"}
    assert read_new("q.fifo", divided).partition_count is None, "the default"
    assert read_new("q.fifo", divided | {"PenstockPartitions": "4"}).partition_count == 4


def test_the_redrive_count_may_be_text_and_is_shown_as_a_number() -> None:
    text = json.dumps({"deadLetterTargetArn": TARGET, "maxReceiveCount": "3"})
    topic = queue(RedrivePolicy=text)
    expected = f'{{"deadLetterTargetArn":"{TARGET}","maxReceiveCount":3}}'
    assert shown(topic, "RedrivePolicy") == {"RedrivePolicy": expected}
    assert changed(topic, {"RedrivePolicy": ""}, now_ms=0).settings.redrive is None


@pytest.mark.parametrize("count", ["0", "1001", "x", True, None, 1.5])
def test_a_redrive_count_out_of_range_is_refused(count: object) -> None:
    text = json.dumps({"deadLetterTargetArn": TARGET, "maxReceiveCount": count})
    refused("InvalidParameterValue", RedrivePolicy=text)


# ── Kind ─────────────────────────────────────────────────────────────────────────────────────
def test_a_fifo_queue_says_so_in_its_name_and_in_its_attribute() -> None:
    assert read_new("q.fifo", {"FifoQueue": "true"}).kind is Kind.FIFO
    assert read_new("q", {}).kind is Kind.STANDARD
    assert "must end with .fifo" in refused("InvalidParameterValue", FifoQueue="true")
    refused("InvalidParameterValue", "q.fifo")
    assert refused("InvalidAttributeName", FifoQueue="false") == "Unknown Attribute FifoQueue."


def test_the_kind_may_be_repeated_but_not_changed() -> None:
    fifo = queue("q.fifo")
    assert changed(fifo, {"FifoQueue": "true"}, now_ms=fifo.modified_at_ms) == fifo
    with pytest.raises(Fault) as raised:
        changed(fifo, {"FifoQueue": "false"}, now_ms=0)
    assert raised.value.code == "InvalidAttributeValue"
    with pytest.raises(Fault) as raised:
        changed(queue("q"), {"FifoQueue": "true"}, now_ms=0)
    assert raised.value.code == "InvalidAttributeName"


def test_partitions_are_fixed_at_creation_and_fsync_is_not() -> None:
    with pytest.raises(Fault) as raised:
        changed(queue(), {"PenstockPartitions": "2"}, now_ms=0)
    assert raised.value.code == "InvalidAttributeName"
    assert changed(queue(), {"PenstockFsync": "always"}, now_ms=0).fsync is Fsync.ALWAYS


# ── Rules that join attributes ───────────────────────────────────────────────────────────────
def test_high_throughput_needs_the_group_scope() -> None:
    refused(
        "InvalidParameterValue", "q.fifo", FifoQueue="true", FifoThroughputLimit="perMessageGroupId"
    )
    topic = queue(
        "q.fifo", FifoThroughputLimit="perMessageGroupId", DeduplicationScope="messageGroup"
    )
    with pytest.raises(Fault):
        changed(topic, {"DeduplicationScope": "queue"}, now_ms=0)


def test_a_later_change_of_scope_only_changes_what_is_shown() -> None:
    topic = changed(queue("q.fifo"), {"DeduplicationScope": "messageGroup"}, now_ms=7)
    assert shown(topic, "DeduplicationScope") == {"DeduplicationScope": "messageGroup"}
    assert topic.dedup_scope is DedupScope.QUEUE
    assert topic.modified_at_ms == 7


def test_the_two_kinds_of_encryption_exclude_each_other() -> None:
    refused("InvalidAttributeName", KmsMasterKeyId="alias/a", SqsManagedSseEnabled="true")
    topic = queue(KmsMasterKeyId="alias/a")
    assert shown(topic, "KmsMasterKeyId", "SqsManagedSseEnabled") == {
        "KmsMasterKeyId": "alias/a",
        "SqsManagedSseEnabled": "false",
    }
    topic = changed(topic, {"SqsManagedSseEnabled": "true"}, now_ms=0)
    assert shown(topic, "KmsMasterKeyId", "SqsManagedSseEnabled") == {
        "SqsManagedSseEnabled": "true"
    }


def test_the_key_reuse_period_is_hidden_while_it_is_the_default() -> None:
    assert shown(queue(KmsDataKeyReusePeriodSeconds="300"), "KmsDataKeyReusePeriodSeconds") == {}


# ── Asking CreateQueue again ─────────────────────────────────────────────────────────────────
def test_only_given_attributes_are_compared_and_by_meaning() -> None:
    allow = '{"redrivePermission": "denyAll"}'
    topic = queue(VisibilityTimeout="5", Policy=POLICY, RedriveAllowPolicy=allow)
    assert first_difference({}, topic) is None
    assert first_difference({"VisibilityTimeout": "5", "DelaySeconds": "0"}, topic) is None
    assert first_difference({"Policy": POLICY.replace(" ", "")}, topic) is None
    assert first_difference({"RedriveAllowPolicy": allow.replace(" ", "")}, topic) is None
    assert first_difference({"VisibilityTimeout": "6"}, topic) == "VisibilityTimeout"
    assert first_difference({"Policy": ""}, topic) == "Policy"
    assert first_difference({"PenstockPartitions": "2"}, topic) == "PenstockPartitions"


def test_an_empty_text_removes_what_is_json() -> None:
    topic = queue(Policy=POLICY, RedriveAllowPolicy='{"redrivePermission":"allowAll"}')
    after = changed(topic, {"Policy": "", "RedriveAllowPolicy": ""}, now_ms=1)
    assert after.settings == msgspec.structs.replace(queue().settings)
