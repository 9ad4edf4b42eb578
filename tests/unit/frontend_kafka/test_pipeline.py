"""KafkaFrontend.answer from the outside: which frames get an answer, and how the others end."""

import logging
import struct

import pytest
from tests.unit.frontend_kafka.rig import CORRELATION_ID, Rig

from penstock.frontend.kafka.actions import ACTIONS
from penstock.model.errors import DiskFull
from penstock.model.file_slice import in_memory
from penstock.model.limits import REQUEST_BYTES_MAX
from penstock.net.kafka.listener import HangUp
from penstock.wire.kafka.apis import API_VERSIONS, APIS, PRODUCE
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.api_versions import (
    ApiVersionsRequest,
    decode_api_versions_response,
)
from penstock.wire.kafka.generated.init_producer_id import InitProducerIdRequest
from penstock.wire.kafka.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

LIST_OFFSETS = 2
METADATA = 3
INIT_PRODUCER_ID = 22
NEW_CLIENT = ApiVersionsRequest("client-x", "1.2.3")


def frame(key: int, version: int, rest: bytes = b"") -> bytes:
    return struct.pack(">hhih", key, version, CORRELATION_ID, -1) + rest


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_names_exactly_what_is_served(version: int) -> None:
    answer = await Rig().ask(API_VERSIONS, version, NEW_CLIENT)
    assert answer.error_code == 0
    assert {row.api_key for row in answer.api_keys} == set(ACTIONS)
    for row in answer.api_keys:
        api = APIS[row.api_key]
        assert (row.min_version, row.max_version) == (api.advertised_min, api.version_max)


async def test_the_answer_to_api_versions_has_the_old_header_in_every_version() -> None:
    buffers = await Rig().raw(API_VERSIONS, 4, b"\x02a\x02b\x00")
    assert buffers is not None
    data = b"".join(in_memory(buffers))
    assert struct.unpack_from(">i", data) == (CORRELATION_ID,)
    assert decode_api_versions_response(data, 4, 4).error_code == 0


async def test_a_version_of_api_versions_from_the_future_is_answered_in_version_0() -> None:
    rig = Rig()
    buffers = await rig.frontend.answer(rig.connection, frame(API_VERSIONS, 99, b"\x00whatever"))
    assert buffers is not None
    data = b"".join(in_memory(buffers))
    answer = decode_api_versions_response(data, 4, 0)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert {row.api_key for row in answer.api_keys} == set(ACTIONS)
    assert rig.meter.requests == [("ApiVersions", "kafka", "UNSUPPORTED_VERSION")]


async def test_a_client_that_cannot_name_itself_is_told_so() -> None:
    rig = Rig()
    answer = await rig.ask(API_VERSIONS, 3, ApiVersionsRequest("-bad-", "1"))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert rig.meter.requests == [("ApiVersions", "kafka", "INVALID_REQUEST")]


async def test_what_a_client_is_stays_with_its_connection() -> None:
    rig = Rig()
    await rig.ask(API_VERSIONS, 3, NEW_CLIENT)
    assert rig.connection.session["software"] == ("client-x", "1.2.3")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x00", id="too short"),
        pytest.param(frame(9_999, 0), id="no such API"),
        pytest.param(frame(PRODUCE, 0), id="a version only advertised"),
        pytest.param(frame(METADATA, 14), id="a version from the future"),
        pytest.param(frame(METADATA, 1, b"\x7f\xff\xff\xff"), id="an array longer than the frame"),
        pytest.param(frame(METADATA, 12, b"\x00\xff\xff\xff\xff\xff\xff"), id="no varint"),
    ],
)
async def test_what_cannot_be_read_ends_the_connection(data: bytes) -> None:
    rig = Rig()
    with pytest.raises(HangUp):
        await rig.frontend.answer(rig.connection, data)
    [(_, protocol, code)] = rig.meter.requests
    assert (protocol, code) == ("kafka", "HangUp")


async def test_only_records_make_a_long_request() -> None:
    rig = Rig()
    with pytest.raises(HangUp, match="exceeds the limit"):
        await rig.raw(METADATA, 1, bytes(REQUEST_BYTES_MAX))


async def test_a_failure_nobody_foresaw_is_logged_once_and_ends_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    topic = await rig.topic("t")
    rig.partition(topic).broken = ZeroDivisionError("division by zero")
    request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, -1)])])
    with caplog.at_level(logging.DEBUG), pytest.raises(HangUp) as raised:
        await rig.ask(LIST_OFFSETS, 5, request)
    assert "division" not in str(raised.value)
    [record] = caplog.records
    assert record.exc_info is not None
    assert rig.meter.requests == [("ListOffsets", "kafka", "UNKNOWN_SERVER_ERROR")]


async def test_the_error_of_an_answer_is_what_is_counted() -> None:
    rig = Rig()
    rig.producer_ids.broken = DiskFull("no room")
    await rig.ask(INIT_PRODUCER_ID, 4, InitProducerIdRequest(None, 0))
    assert rig.meter.requests == [("InitProducerId", "kafka", "KAFKA_STORAGE_ERROR")]
