"""Produce, laid out by hand: the same bytes as others write, slices instead of copies."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.wire_kafka.messages import TEXTS, UUIDS, Vector, vectors

from penstock.wire.kafka.primitives import ZERO_UUID, Leader, Malformed, NodeEndpoint, Unencodable
from penstock.wire.kafka.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
    RecordError,
    decode_produce_request,
    decode_produce_response,
    encode_produce_request,
    encode_produce_response,
)

VERSIONS = range(3, 14)
TOPIC_ID_FROM = 13
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def request_of(plain: dict[str, Any]) -> ProduceRequest:
    topics = []
    for topic in plain["topic_data"]:
        partitions = [
            ProducePartition(
                each["index"], None if each["records"] is None else bytes.fromhex(each["records"])
            )
            for each in topic["partition_data"]
        ]
        topic_id = bytes.fromhex(topic["topic_id"]) if "topic_id" in topic else ZERO_UUID
        topics.append(ProduceTopic(topic.get("name", ""), topic_id, partitions))
    return ProduceRequest(plain["transactional_id"], plain["acks"], plain["timeout_ms"], topics)


def response_of(plain: dict[str, Any]) -> ProduceResponse:
    topics = []
    for topic in plain["responses"]:
        partitions = tuple(_result_of(each) for each in topic["partition_responses"])
        topic_id = bytes.fromhex(topic["topic_id"]) if "topic_id" in topic else ZERO_UUID
        topics.append(ProduceTopicResponse(topic.get("name", ""), topic_id, partitions))
    endpoints = tuple(NodeEndpoint(**each) for each in plain.get("node_endpoints", ()))
    return ProduceResponse(tuple(topics), plain["throttle_time_ms"], endpoints)


def _result_of(plain: dict[str, Any]) -> ProducePartitionResponse:
    errors = tuple(
        RecordError(each["batch_index"], each["batch_index_error_message"])
        for each in plain.get("record_errors", ())
    )
    leader = plain.get("current_leader")
    return ProducePartitionResponse(
        plain["index"],
        plain["error_code"],
        plain["base_offset"],
        plain["log_append_time_ms"],
        plain.get("log_start_offset", -1),
        errors,
        plain.get("error_message"),
        # A tagged field at its default is not written.
        None
        if leader in (None, {"leader_id": -1, "leader_epoch": -1})
        else Leader(leader["leader_id"], leader["leader_epoch"]),
    )


def those(message: str) -> Sequence[Vector]:
    return [each for each in vectors() if each.message == message]


@pytest.mark.parametrize("vector", those("ProduceRequest"), ids=lambda each: each.title)
def test_requests_are_those_that_other_codecs_write(vector: Vector) -> None:
    value = request_of(vector.value)
    assert encode_produce_request(value, vector.version) == vector.raw
    assert decode_produce_request(vector.raw, 0, vector.version) == value


@pytest.mark.parametrize("vector", those("ProduceResponse"), ids=lambda each: each.title)
def test_responses_are_those_that_other_codecs_write(vector: Vector) -> None:
    value = response_of(vector.value)
    assert encode_produce_response(value, vector.version) == vector.raw
    assert decode_produce_response(vector.raw, 0, vector.version) == value


partitions = st.builds(ProducePartition, INT32, st.none() | st.binary(max_size=300))


@settings(max_examples=60, deadline=None)
@given(version=st.sampled_from(VERSIONS), data=st.data())
def test_requests_are_read_back(version: int, data: st.DataObject) -> None:
    is_id = version >= TOPIC_ID_FROM
    topic = st.builds(
        ProduceTopic,
        st.just("") if is_id else TEXTS,
        UUIDS if is_id else st.just(ZERO_UUID),
        st.lists(partitions, max_size=3),
    )
    made = st.builds(
        ProduceRequest,
        st.none() | TEXTS,
        st.sampled_from((-1, 0, 1)),
        INT32,
        st.lists(topic, max_size=3),
    )
    value = data.draw(made)
    raw = encode_produce_request(value, version)
    assert decode_produce_request(b"header" + raw, 6, version) == value


results = st.builds(
    ProducePartitionResponse,
    INT32,
    st.integers(-1, 133),
    INT64,
    INT64,
    INT64,
    st.lists(st.builds(RecordError, INT32, st.none() | TEXTS), max_size=2).map(tuple),
    st.none() | TEXTS,
    st.none() | st.builds(Leader, INT32, INT32),
)
endpoints = st.builds(NodeEndpoint, INT32, TEXTS, INT32, st.none() | TEXTS)


@settings(max_examples=60, deadline=None)
@given(
    topics=st.lists(
        st.builds(
            ProduceTopicResponse,
            st.just(""),
            UUIDS,
            st.lists(results, max_size=3).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    throttle_ms=INT32,
    nodes=st.lists(endpoints, max_size=2).map(tuple),
)
def test_responses_are_read_back(
    topics: Sequence[ProduceTopicResponse], throttle_ms: int, nodes: Sequence[NodeEndpoint]
) -> None:
    value = ProduceResponse(topics, throttle_ms, nodes)
    assert decode_produce_response(encode_produce_response(value, 13), 0, 13) == value


def test_records_are_slices_of_the_frame() -> None:
    value = ProduceRequest(
        None, -1, 1_000, [ProduceTopic("t", ZERO_UUID, [ProducePartition(0, b"r" * 1_024)])]
    )
    for version in (8, 12):
        frame = encode_produce_request(value, version)
        records = decode_produce_request(frame, 0, version).topics[0].partitions[0].records
        assert isinstance(records, memoryview)
        assert records.obj is frame


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_that_are_cut_off_are_malformed(version: int) -> None:
    (raw,) = [
        each.raw
        for each in those("ProduceRequest")
        if each.version == version and each.form == "full"
    ]
    for size in range(len(raw)):
        with pytest.raises(Malformed):
            decode_produce_request(raw[:size], 0, version)


def test_counts_beyond_the_bytes_left_are_refused_before_anything_is_made() -> None:
    with pytest.raises(Malformed, match="more elements"):
        decode_produce_request(b"\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff\x07", 0, 9)
    with pytest.raises(Malformed, match="more elements"):
        decode_produce_request(b"\xff\xff\x00\x01\x00\x00\x00\x00\x7f\xff\xff\xff", 0, 3)


def test_a_topic_id_of_another_length_is_unencodable() -> None:
    value = ProduceResponse([ProduceTopicResponse("", b"short", [])])
    with pytest.raises(Unencodable):
        encode_produce_response(value, 13)
