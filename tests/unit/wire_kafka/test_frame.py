"""Lengths and headers around messages; the table of APIs; the blobs of consumer groups."""

import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.kafka.apis import (
    API_VERSIONS,
    APIS,
    PRODUCE,
    UnknownApi,
    decode_request_header,
    encode_request_frame,
    encode_response_frame,
    is_unknown_api_versions,
    parse_request_header,
    parse_response_header,
)
from penstock.wire.kafka.consumer_records import (
    ConsumerProtocolAssignment,
    decode_assignment,
    encode_assignment,
)
from penstock.wire.kafka.primitives import Malformed

METADATA = APIS[3]


# As kio writes them: Metadata 5 with header version 1, Metadata 12 with header version 2.
HEADER_1 = bytes.fromhex("000300050000002a0004") + b"test"
HEADER_2 = bytes.fromhex("0003000c0000002a0004") + b"test" + b"\x00"


def test_the_header_follows_the_version_of_the_message() -> None:
    plain = parse_request_header(HEADER_1 + b"body")
    flexible = parse_request_header(memoryview(HEADER_2 + b"body"))
    assert plain == (3, 5, 42, "test", len(HEADER_1))
    assert flexible == (3, 12, 42, "test", len(HEADER_2))
    assert decode_request_header(HEADER_1, 0, 0) == (3, 5, 42, None, 8)


def test_a_client_needs_no_id() -> None:
    header = parse_request_header(struct.pack(">hhih", 3, 5, 1, -1))
    assert header.client_id is None


def test_unknown_tagged_fields_of_a_header_are_skipped() -> None:
    raw = HEADER_2[:-1] + b"\x01\x07\x03abc" + b"body"
    assert raw[parse_request_header(raw).body_at :] == b"body"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        HEADER_1[:7],
        HEADER_1[:-1],
        HEADER_2[:-1],
        HEADER_2[:-1] + b"\x01\x07\x7f",
        struct.pack(">hhih", 3, 5, 1, -2),
        struct.pack(">hhih", 3, 5, 1, 1) + b"\xff",
    ],
)
def test_broken_headers_are_malformed(raw: bytes) -> None:
    with pytest.raises(Malformed):
        parse_request_header(raw)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_header_or_refused(raw: bytes) -> None:
    try:
        header = parse_request_header(raw)
    except (Malformed, UnknownApi):
        return
    assert header.body_at <= len(raw)


@pytest.mark.parametrize(
    ("key", "version"), [(999, 0), (-1, 0), (3, 14), (3, -1), (0, 2), (18, -1)]
)
def test_apis_and_versions_that_are_not_served_are_named(key: int, version: int) -> None:
    with pytest.raises(UnknownApi) as caught:
        parse_request_header(struct.pack(">hhih", key, version, 1, -1) + b"\x00")
    assert (caught.value.api_key, caught.value.version) == (key, version)


def test_api_versions_is_let_through_in_any_version() -> None:
    header = parse_request_header(struct.pack(">hhih", 18, 99, 77, -1) + b"\x00")
    assert is_unknown_api_versions(header)
    known = parse_request_header(struct.pack(">hhih", 18, 4, 77, -1) + b"\x00")
    assert not is_unknown_api_versions(known)


def test_produce_is_advertised_from_0_and_telemetry_not_at_all() -> None:
    assert (APIS[PRODUCE].advertised_min, APIS[PRODUCE].version_max) == (0, 13)
    assert not APIS.keys() & {71, 72}
    # What librdkafka wants to see before it uses groups, transactions and SASL.
    for key, low in {10: 0, 11: 0, 14: 0, 12: 0, 13: 0, 2: 1, 22: 0, 17: 0, 36: 0, 9: 1}.items():
        assert APIS[key].advertised_min <= low, key
    assert APIS[8].advertised_min <= 2


def test_the_header_of_an_api_versions_reply_never_changes() -> None:
    api = APIS[API_VERSIONS]
    assert [api.response_header_version(version) for version in range(5)] == [0] * 5
    assert [api.request_header_version(version) for version in range(5)] == [1, 1, 1, 2, 2]
    assert METADATA.response_header_version(8) == 0
    assert METADATA.response_header_version(9) == 1


@pytest.mark.parametrize("version", [5, 12])
def test_frames_of_a_client_and_of_a_server_are_read_back(version: int) -> None:
    frame = encode_request_frame(
        METADATA, version, correlation_id=42, client_id="test", body=b"body"
    )
    expected = HEADER_1 if version == 5 else HEADER_2
    assert frame == struct.pack(">i", len(frame) - 4) + expected + b"body"
    reply = encode_response_frame(METADATA, version, 42, b"body")
    assert struct.unpack(">i", reply[:4]) == (len(reply) - 4,)
    header_version = METADATA.response_header_version(version)
    correlation_id, position = parse_response_header(reply[4:], header_version)
    assert (correlation_id, reply[4:][position:]) == (42, b"body")


@pytest.mark.parametrize(
    "raw", [b"", b"\x00\x00\x00", b"\x00\x00\x00\x01", b"\x00\x00\x00\x01\x01\x05\x7f"]
)
def test_broken_response_headers_are_malformed(raw: bytes) -> None:
    with pytest.raises(Malformed):
        parse_response_header(raw, 1)


def test_codecs_are_imported_when_first_used() -> None:
    script = (
        "import sys; from penstock.wire.kafka import apis;"
        "before = [m for m in sys.modules if '.generated' in m];"
        "apis.APIS[3].codec();"
        "after = [m for m in sys.modules if '.generated.' in m];"
        "print(before, after)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[] ['penstock.wire.kafka.generated.metadata']"


def test_blobs_of_newer_versions_are_read_as_far_as_they_are_known() -> None:
    value = ConsumerProtocolAssignment(user_data=b"u")
    blob = encode_assignment(value, 3)
    assert decode_assignment(blob) == value
    assert decode_assignment(struct.pack(">h", 9) + blob[2:] + b"what comes later") == value


@pytest.mark.parametrize("blob", [b"", b"\x00", b"\xff\xff", b"\x00\x03\x00"])
def test_broken_blobs_are_malformed(blob: bytes) -> None:
    with pytest.raises(Malformed):
        decode_assignment(blob)
