"""Fetch: the same bytes as other implementations write, and records that are never copied."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.wire_kafka.messages import UUIDS, Vector, vectors

from penstock.model.file_slice import in_memory
from penstock.model.limits import KAFKA_PARTITIONS_MAX
from penstock.wire.kafka.fetch import (
    AbortedTransaction,
    EpochEnd,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    ForgottenTopic,
    ReplicaState,
    decode_fetch_request,
    decode_fetch_response,
    encode_fetch_reply,
    encode_fetch_request,
    encode_fetch_response,
)
from penstock.wire.kafka.primitives import (
    ZERO_UUID,
    Leader,
    Malformed,
    NodeEndpoint,
    TooManyEntries,
    Unencodable,
    encode_uvarint,
)

VERSIONS = range(4, 19)
NOWHERE = {"epoch": -1, "end_offset": -1}
NOBODY = {"leader_id": -1, "leader_epoch": -1}
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def topic_id_of(plain: dict[str, Any]) -> bytes:
    return bytes.fromhex(plain["topic_id"]) if "topic_id" in plain else ZERO_UUID


def request_of(plain: dict[str, Any]) -> FetchRequest:
    topics = tuple(
        FetchTopic(
            each.get("topic", ""),
            topic_id_of(each),
            tuple(_partition_of(part) for part in each["partitions"]),
        )
        for each in plain["topics"]
    )
    forgotten = tuple(
        ForgottenTopic(each.get("topic", ""), topic_id_of(each), tuple(each["partitions"]))
        for each in plain.get("forgotten_topics_data", ())
    )
    return FetchRequest(
        plain["max_wait_ms"],
        plain["min_bytes"],
        topics,
        plain["max_bytes"],
        plain["isolation_level"],
        plain.get("session_id", 0),
        plain.get("session_epoch", -1),
        forgotten,
        plain.get("rack_id", ""),
        plain.get("replica_id", -1),
        ReplicaState(**plain.get("replica_state", {})),
        plain.get("cluster_id"),
    )


def _partition_of(plain: dict[str, Any]) -> FetchPartition:
    directory = plain.get("replica_directory_id")
    return FetchPartition(
        plain["partition"],
        plain["fetch_offset"],
        plain["partition_max_bytes"],
        plain.get("current_leader_epoch", -1),
        plain.get("last_fetched_epoch", -1),
        plain.get("log_start_offset", -1),
        ZERO_UUID if directory is None else bytes.fromhex(directory),
        plain.get("high_watermark", 2**63 - 1),
    )


def response_of(plain: dict[str, Any]) -> FetchResponse:
    topics = tuple(
        FetchTopicResponse(
            each.get("topic", ""),
            topic_id_of(each),
            tuple(_answer_of(part) for part in each["partitions"]),
        )
        for each in plain["responses"]
    )
    return FetchResponse(
        topics,
        plain["throttle_time_ms"],
        plain.get("error_code", 0),
        plain.get("session_id", 0),
        tuple(NodeEndpoint(**each) for each in plain.get("node_endpoints", ())),
    )


def _answer_of(plain: dict[str, Any]) -> FetchPartitionResponse:
    records = bytes.fromhex(plain["records"] or "")
    aborted = plain["aborted_transactions"]
    diverging = plain.get("diverging_epoch")
    leader = plain.get("current_leader")
    return FetchPartitionResponse(
        plain["partition_index"],
        plain["error_code"],
        plain["high_watermark"],
        plain["last_stable_offset"],
        plain.get("log_start_offset", -1),
        (records,) if records else (),
        None if aborted is None else tuple(AbortedTransaction(**each) for each in aborted),
        plain.get("preferred_read_replica", -1),
        # A tagged field at its default is not written.
        None if diverging in (None, NOWHERE) else EpochEnd(**diverging),
        None if leader in (None, NOBODY) else Leader(leader["leader_id"], leader["leader_epoch"]),
    )


def those(message: str) -> Sequence[Vector]:
    return [each for each in vectors() if each.message == message]


@pytest.mark.parametrize("vector", those("FetchRequest"), ids=lambda each: each.title)
def test_requests_are_those_that_other_codecs_write(vector: Vector) -> None:
    value = request_of(vector.value)
    assert decode_fetch_request(vector.raw, 0, vector.version) == value
    assert encode_fetch_request(value, vector.version) == vector.raw


@pytest.mark.parametrize("vector", those("FetchResponse"), ids=lambda each: each.title)
def test_responses_of_other_codecs_are_understood(vector: Vector) -> None:
    assert decode_fetch_response(vector.raw, 0, vector.version) == response_of(vector.value)


def _is_ours(vector: Vector) -> bool:
    """We never write null for no records."""
    return all(
        part["records"] is not None
        for topic in vector.value["responses"]
        for part in topic["partitions"]
    )


@pytest.mark.parametrize(
    "vector",
    [each for each in those("FetchResponse") if _is_ours(each)],
    ids=lambda each: each.title,
)
def test_responses_are_those_that_other_codecs_write(vector: Vector) -> None:
    assert encode_fetch_response(response_of(vector.value), vector.version) == vector.raw


wanted = st.builds(FetchPartition, INT32, INT64, INT32, INT32, INT32, INT64, UUIDS, INT64)


@settings(max_examples=60, deadline=None)
@given(
    topics=st.lists(
        st.builds(FetchTopic, st.just(""), UUIDS, st.lists(wanted, max_size=3).map(tuple)),
        max_size=3,
    ).map(tuple),
    forgotten=st.lists(
        st.builds(ForgottenTopic, st.just(""), UUIDS, st.lists(INT32, max_size=3).map(tuple)),
        max_size=2,
    ).map(tuple),
    cluster_id=st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
    replica_id=INT32,
)
def test_requests_are_read_back(
    topics: Sequence[FetchTopic],
    forgotten: Sequence[ForgottenTopic],
    cluster_id: str | None,
    replica_id: int,
) -> None:
    value = FetchRequest(
        500,
        1,
        topics,
        forgotten_topics=forgotten,
        cluster_id=cluster_id,
        replica_state=ReplicaState(replica_id, 4),
        rack_id="r",
    )
    assert decode_fetch_request(b"head" + encode_fetch_request(value, 18), 4, 18) == value


answers = st.builds(
    FetchPartitionResponse,
    INT32,
    st.integers(-1, 133),
    INT64,
    INT64,
    INT64,
    st.binary(min_size=1, max_size=300).map(lambda raw: (raw,)) | st.just(()),
    st.none() | st.lists(st.builds(AbortedTransaction, INT64, INT64), max_size=3).map(tuple),
    INT32,
    st.none() | st.builds(EpochEnd, INT32, INT64),
    st.none() | st.builds(Leader, INT32, INT32),
)


@settings(max_examples=80, deadline=None)
@given(
    version=st.sampled_from(VERSIONS), partitions=st.lists(answers, max_size=4), throttle_ms=INT32
)
def test_responses_are_read_back_and_their_length_is_known(
    version: int, partitions: list[FetchPartitionResponse], throttle_ms: int
) -> None:
    is_id = version >= 13
    kept = tuple(_carried(each, version) for each in partitions)
    topic = FetchTopicResponse("" if is_id else "t", b"i" * 16 if is_id else ZERO_UUID, kept)
    value = FetchResponse((topic,), throttle_ms)
    buffers, total = encode_fetch_reply(value, version)
    raw = b"".join(in_memory(buffers))
    assert total == len(raw)
    assert decode_fetch_response(raw, 0, version) == value


def _carried(each: FetchPartitionResponse, version: int) -> FetchPartitionResponse:
    """What is left of an answer in an older version."""
    changes: dict[str, Any] = {}
    if version < 5:
        changes["log_start_offset"] = -1
    if version < 11:
        changes["preferred_read_replica"] = -1
    if version < 12:
        changes |= {"diverging_epoch": None, "current_leader": None}
    return msgspec.structs.replace(each, **changes)


def test_batches_stand_in_the_list_themselves() -> None:
    batches: list[bytes | memoryview] = [b"first batch", memoryview(b"second batch")]
    partition = FetchPartitionResponse(0, high_watermark=9, records=batches)
    value = FetchResponse([FetchTopicResponse("t", b"i" * 16, [partition, partition])])
    for version in (11, 18):
        buffers, total = encode_fetch_reply(value, version)
        assert [each for each in buffers if any(each is batch for batch in batches)] == batches * 2
        assert total == sum(len(each) for each in buffers)
        read = decode_fetch_response(b"".join(in_memory(buffers)), 0, version)
        assert read.topics[0].partitions[1].records == (b"first batchsecond batch",)


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_that_are_cut_off_are_malformed(version: int) -> None:
    for vector in those("FetchRequest"):
        if vector.version == version and vector.form == "full":
            for size in range(len(vector.raw)):
                with pytest.raises(Malformed):
                    decode_fetch_request(vector.raw[:size], 0, version)


def test_tagged_fields_are_bounded() -> None:
    value = FetchRequest(500, 1, ())
    raw = encode_fetch_request(value, 18)
    count = KAFKA_PARTITIONS_MAX + 1
    with pytest.raises(TooManyEntries, match="tags"):
        decode_fetch_request(raw[:-1] + encode_uvarint(count) + b"\x05\x00" * count, 0, 18)


def test_values_that_do_not_fit_are_unencodable() -> None:
    with pytest.raises(Unencodable):
        encode_fetch_reply(FetchResponse([FetchTopicResponse("", b"short", [])]), 13)
    with pytest.raises(Unencodable):
        encode_fetch_request(FetchRequest(2**40, 1, ()), 12)
