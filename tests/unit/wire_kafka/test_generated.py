"""The generated codecs against other people's bytes, against themselves, and against noise."""

import random
import tracemalloc
from importlib import import_module

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.wire_kafka.messages import GENERATED, SHAPES, build, values, vectors

from penstock.model.limits import KAFKA_ENTRIES_MAX, KAFKA_PARTITIONS_MAX
from penstock.wire.kafka.apis import APIS, Api
from penstock.wire.kafka.generated import (
    api_versions,
    create_topics,
    describe_topic_partitions,
    heartbeat,
    metadata,
)
from penstock.wire.kafka.primitives import (
    Malformed,
    Unencodable,
    UnsupportedVersion,
    encode_uvarint,
)

ARRAYS = ("topics", "groups", "filters", "coordinators")

CALM = settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def test_there_is_a_vector_of_each_form_for_every_message_and_version() -> None:
    expected = {
        (name, version, form)
        for name, shape in SHAPES.items()
        for version in shape.versions
        for form in ("full", "sparse")
    }
    assert {(each.message, each.version, each.form) for each in vectors()} == expected


@pytest.mark.parametrize("name", GENERATED)
def test_bytes_are_those_that_other_codecs_write(name: str) -> None:
    shape = SHAPES[name]
    for vector in vectors():
        if vector.message == name:
            value = build(shape.kind, vector.value)
            assert shape.encode(value, vector.version) == vector.raw, vector.title
            assert shape.decode(vector.raw, 0, vector.version) == value, vector.title


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATED)
@CALM
@given(data=st.data())
def test_what_is_written_is_read_back_in_every_version(name: str, data: st.DataObject) -> None:
    shape = SHAPES[name]
    for version in shape.versions:
        value = data.draw(values(shape.kind, version))
        raw = shape.encode(value, version)
        assert shape.decode(b"before" + raw + b"behind", 6, version) == value
        assert shape.decode(memoryview(raw), 0, version) == value


@pytest.mark.parametrize("name", GENERATED)
def test_a_message_that_is_cut_off_anywhere_is_malformed(name: str) -> None:
    shape = SHAPES[name]
    for vector in vectors():
        if vector.message == name and vector.form == "full":
            step = max(1, len(vector.raw) // 40)
            for size in range(0, len(vector.raw), step):
                with pytest.raises(Malformed):
                    shape.decode(vector.raw[:size], 0, vector.version)


@pytest.mark.parametrize("name", SHAPES)
def test_changed_bytes_are_read_or_malformed_and_nothing_else(name: str) -> None:
    shape = SHAPES[name]
    chance = random.Random(name)
    for vector in vectors():
        if vector.message != name:
            continue
        for _ in range(12):
            changed = bytearray(vector.raw)
            for _ in range(chance.randint(1, 4)):
                if changed:
                    changed[chance.randrange(len(changed))] = chance.choice((0, 1, 127, 128, 255))
            try:
                shape.decode(bytes(changed), 0, vector.version)
            except Malformed:
                pass


@settings(max_examples=400, deadline=None)
@given(
    name=st.sampled_from(sorted(SHAPES)),
    version=st.integers(-2, 20),
    data=st.binary(max_size=200),
)
def test_noise_is_read_or_refused_and_nothing_else(name: str, version: int, data: bytes) -> None:
    shape = SHAPES[name]
    try:
        shape.decode(data, 0, version)
    except Malformed:
        assert version in shape.versions
    except UnsupportedVersion:
        assert version not in shape.versions


HUGE = (b"\xff\xff\xff\xff\x07", b"\x7f\xff\xff\xff", b"\x00\x7f\xff\xff", b"\xff\xff\x7f")


@pytest.mark.parametrize("name", SHAPES)
def test_lengths_that_lie_cost_no_memory(name: str) -> None:
    """Wherever a length may stand, one is put that claims up to two thousand million."""
    shape = SHAPES[name]
    ends = (shape.versions[0], shape.versions[-1])
    tried = [each for each in vectors() if each.message == name and each.version in ends]
    for vector in tried:
        shape.decode(vector.raw, 0, vector.version)  # the first decoding compiles the codec
    tracemalloc.start()
    try:
        for vector in tried:
            for position in range(0, len(vector.raw), max(1, len(vector.raw) // 30)):
                lie = HUGE[position % len(HUGE)]
                data = vector.raw[:position] + lie + vector.raw[position + len(lie) :]
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
                try:
                    shape.decode(data, 0, vector.version)
                except Malformed:
                    pass
                _, peak = tracemalloc.get_traced_memory()
                assert peak - before < 60 * len(data) + 16_384, (vector.title, position)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "version", "head", "element"),
    [
        ("MetadataRequest", 9, b"", b"\x01\x00"),
        ("DescribeGroupsRequest", 5, b"", b"\x01"),
        ("DeleteAclsRequest", 1, b"", b"\x01" + b"\x00" * 9),
        (
            "FindCoordinatorResponse",
            4,
            b"\x00\x00\x00\x00",
            b"\x01" + bytes(4) + b"\x01" + bytes(8),
        ),
    ],
)
def test_the_most_elements_that_fit_take_a_bounded_multiple_of_the_input(
    name: str, version: int, head: bytes, element: bytes
) -> None:
    shape = SHAPES[name]
    bounds = {"MetadataRequest": KAFKA_PARTITIONS_MAX, "FindCoordinatorResponse": 20_000}
    count = bounds.get(name, KAFKA_ENTRIES_MAX)
    is_compact = version >= 4
    length = encode_uvarint(count + 1) if is_compact else count.to_bytes(4, "big")
    data = head + length + element * count + b"\x00" * 8
    shape.decode(data, 0, version)  # the first decoding compiles the codec
    tracemalloc.start()
    try:
        value = shape.decode(data, 0, version)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert any(len(getattr(value, each)) == count for each in ARRAYS if hasattr(value, each))
    assert peak < 60 * len(data) + 16_384


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_the_table_of_apis_says_what_the_codecs_say(api: Api) -> None:
    codec = api.codec()
    for version in (api.version_min - 1, api.version_max + 1):
        with pytest.raises(UnsupportedVersion):
            codec.decode_request(b"", 0, version)
        with pytest.raises(UnsupportedVersion):
            codec.decode_response(b"", 0, version)
    if api.name in ("Produce", "Fetch"):
        return
    module = import_module(f"penstock.wire.kafka.generated.{api.snake}")
    assert api.key == module.API_KEY
    assert api.version_min == module.VERSION_MIN
    assert api.version_max == module.VERSION_MAX
    assert api.flexible_from == module.FLEXIBLE_FROM


def test_null_is_refused_where_the_version_has_none() -> None:
    nameless = metadata.MetadataResponse(topics=[metadata.MetadataResponseTopic(name=None)])
    metadata.encode_metadata_response(nameless, 12)
    with pytest.raises(Unencodable, match="name must not be null"):
        metadata.encode_metadata_response(nameless, 11)


def test_null_in_bytes_is_malformed_where_the_version_has_none() -> None:
    with pytest.raises(Malformed):
        metadata.decode_metadata_request(b"\xff\xff\xff\xff", 0, 0)
    assert metadata.decode_metadata_request(b"\xff\xff\xff\xff", 0, 1).topics is None


def test_negative_lengths_other_than_null_are_malformed() -> None:
    with pytest.raises(Malformed):
        metadata.decode_metadata_request(b"\xff\xff\xff\xfe", 0, 1)


@pytest.mark.parametrize(
    "value",
    [
        heartbeat.HeartbeatRequest(generation_id=2**31),
        heartbeat.HeartbeatRequest(group_id="\ud800"),
        heartbeat.HeartbeatRequest(group_id="x" * 40_000),
    ],
    ids=["number too large", "lone surrogate", "text too long"],
)
def test_values_that_do_not_fit_are_unencodable(value: heartbeat.HeartbeatRequest) -> None:
    with pytest.raises(Unencodable):
        heartbeat.encode_heartbeat_request(value, 0)


def test_an_id_must_be_sixteen_bytes() -> None:
    value = metadata.MetadataResponse(topics=[metadata.MetadataResponseTopic(topic_id=b"short")])
    with pytest.raises(Unencodable, match="topic_id"):
        metadata.encode_metadata_response(value, 12)


def test_a_request_that_an_old_version_would_change_in_meaning_is_refused() -> None:
    dry = create_topics.CreateTopicsRequest(validate_only=True)
    static = heartbeat.HeartbeatRequest(group_instance_id="one")
    assert create_topics.encode_create_topics_request(dry, 2)
    with pytest.raises(UnsupportedVersion, match="group_instance_id"):
        heartbeat.encode_heartbeat_request(static, 2)


def test_unknown_tagged_fields_are_skipped_and_known_ones_kept() -> None:
    value = api_versions.ApiVersionsResponse(
        finalized_features_epoch=7,
        finalized_features=[api_versions.FinalizedFeatureKey("transaction.version", 2, 2)],
    )
    raw = api_versions.encode_api_versions_response(value, 4)
    head, tail = raw[:7], raw[7:]
    assert tail[0] == 2, "two fields differ from their defaults"
    unknown = b"\x63\x03abc"
    raw = head + b"\x03" + tail[1:] + unknown
    read = api_versions.decode_api_versions_response(raw, 0, 4)
    assert read.finalized_features_epoch == 7
    assert read.finalized_features == (
        api_versions.FinalizedFeatureKey("transaction.version", 2, 2),
    )


def test_a_tagged_field_that_lies_about_its_size_is_malformed() -> None:
    value = api_versions.ApiVersionsResponse(finalized_features_epoch=7)
    raw = bytearray(api_versions.encode_api_versions_response(value, 4))
    at = raw.index(b"\x01\x08\x00") + 1
    raw[at] = 9
    with pytest.raises(Malformed):
        api_versions.decode_api_versions_response(bytes(raw) + b"\x00", 0, 4)


def test_a_struct_may_be_absent() -> None:
    for cursor in (None, describe_topic_partitions.DescribeTopicPartitionsRequestCursor("t", 3)):
        value = describe_topic_partitions.DescribeTopicPartitionsRequest(cursor=cursor)
        raw = describe_topic_partitions.encode_describe_topic_partitions_request(value, 0)
        read = describe_topic_partitions.decode_describe_topic_partitions_request(raw, 0, 0)
        assert read.cursor == cursor
