"""The frame of a message: its length, the request header, the response header.

    request    ┌────────┬─────────┬─────────┬─────────────┬───────────────┬──────────────┬──────┐
               │ length │ api key │ version │ correlation │ client id     │ tagged       │ body │
               │ i32    │ i16     │ i16     │ id i32      │ i16 + bytes   │ fields       │      │
               └────────┴─────────┴─────────┴─────────────┴───────────────┴──────────────┴──────┘
                        └─ version 0 ─────────────────────┘ … version 1 ──┘ … version 2 ─┘
    response   ┌────────┬─────────────┬───────────────┬──────┐
               │ length │ correlation │ tagged fields │ body │   version 0 has no tagged fields
               └────────┴─────────────┴───────────────┴──────┘

``length`` counts the bytes after it. The client id keeps its old two-byte length in all versions,
so that any server can read the header of any client. Pure: sockets are in ``net/``."""

import struct
from typing import TYPE_CHECKING, NamedTuple

from penstock.wire.kafka.apis import API_VERSIONS, APIS, Api
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.malformed import Malformed, UnsupportedVersion
from penstock.wire.kafka.primitives import (
    BROKEN,
    Buffer,
    absent,
    malformed,
    short,
    skip_tags,
)

if TYPE_CHECKING:
    from penstock.wire.kafka.generated.api_versions import ApiVersion

_LENGTH = struct.Struct(">i")
_KEY_VERSION = struct.Struct(">hh")
_HEAD = struct.Struct(">hhi")
_HEAD_1 = struct.Struct(">hhih")  # with the length of the client id
_CLIENT_ID = struct.Struct(">h")
_RESPONSE_HEAD = (struct.Struct(">ii"), struct.Struct(">iix"))  # by header version
_RESPONSE_HEADER = (4, 5)
_RESPONSE_HEADERS = (struct.Struct(">i"), struct.Struct(">ix"))

LENGTH_BYTES = _LENGTH.size
REQUEST_BYTES_MIN = _HEAD.size

_TLS_HANDSHAKE = b"\x16\x03"
_HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN")


def frame_length(first4: Buffer, *, bytes_max: int) -> int:
    """Return how many bytes follow the first four of a request. ``bytes_max`` is small until the
    client is authenticated. Raises Malformed; then the connection must be closed."""
    head = bytes(first4[:LENGTH_BYTES])
    if len(head) < LENGTH_BYTES:
        raise short()
    (length,) = _LENGTH.unpack(head)
    if REQUEST_BYTES_MIN <= length <= bytes_max:
        return int(length)
    if head.startswith(_TLS_HANDSHAKE):
        raise Malformed("a TLS handshake on a port without TLS")
    if head in _HTTP:
        raise Malformed("an HTTP request on the Kafka port")
    raise Malformed(f"a frame of {length} bytes, {bytes_max} are allowed")


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int  # start of the message


class UnknownApi(UnsupportedVersion):
    """An API key that is not served, or a version of it. No reply would be readable for the client,
    so the connection is closed."""

    def __init__(self, api_key: int, version: int) -> None:
        api = APIS.get(api_key)
        super().__init__(api.name if api else f"API key {api_key}", version)
        self.api_key = api_key


def parse_request_header(buffer: Buffer, position: int = 0) -> RequestHeader:
    """Return the header of a frame (without its length). ApiVersions is accepted in any version: if
    ``is_unknown_api_versions``, the reply is ``unsupported_api_versions``."""
    if len(buffer) - position < REQUEST_BYTES_MIN:
        raise short()
    key, version = _KEY_VERSION.unpack_from(buffer, position)
    api = APIS.get(key)
    if api is None or not (api.serves(version) or (key == API_VERSIONS and version >= 0)):
        raise UnknownApi(key, version)
    return decode_request_header(buffer, position, api.request_header_version(version))


def decode_request_header(buffer: Buffer, position: int, header_version: int) -> RequestHeader:
    """Decode a header of a known version. No current client sends version 0."""
    client_id: str | None = None
    try:
        if header_version == 0:
            key, version, correlation_id = _HEAD.unpack_from(buffer, position)
            position += _HEAD.size
        else:
            key, version, correlation_id, size = _HEAD_1.unpack_from(buffer, position)
            position += _HEAD_1.size
            if size >= 0:
                stop = position + size
                client_id = str(buffer[position:stop], "utf-8")
                position = stop
            elif size != -1:
                raise absent("client_id")
        if header_version >= 2:
            position = skip_tags(buffer, position) if buffer[position] else position + 1
    except BROKEN as error:
        raise malformed("request header", error) from None
    if position > len(buffer):
        raise short()
    return RequestHeader(key, version, correlation_id, client_id, position)


def is_unknown_api_versions(header: RequestHeader) -> bool:
    api = APIS[API_VERSIONS]
    return header.api_key == API_VERSIONS and not api.serves(header.api_version)


def unsupported_api_versions(correlation_id: int) -> bytes:
    """Return a whole frame: version 0, the error, and all keys, so that the client can retry."""
    from penstock.wire.kafka.generated import api_versions

    body = api_versions.encode_api_versions_response(
        api_versions.ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=advertised()
        ),
        0,
    )
    return response_head(correlation_id, 0, len(body)) + body


def advertised() -> "tuple[ApiVersion, ...]":
    """Return the rows of an ApiVersions reply."""
    from penstock.wire.kafka.generated.api_versions import ApiVersion

    return tuple(ApiVersion(api.key, api.advertised_min, api.version_max) for api in APIS.values())


def response_head(correlation_id: int, header_version: int, body_bytes: int) -> bytes:
    """Return length and header of a reply whose body is ``body_bytes`` long."""
    length = _RESPONSE_HEADER[header_version] + body_bytes
    return _RESPONSE_HEAD[header_version].pack(length, correlation_id)


def response_header(correlation_id: int, header_version: int) -> bytes:
    """Return the header alone, for callers that write the length themselves."""
    return _RESPONSE_HEADERS[header_version].pack(correlation_id)


def encode_response_frame(api: Api, version: int, correlation_id: int, body: bytes) -> bytes:
    return response_head(correlation_id, api.response_header_version(version), len(body)) + body


# ── The client's side ────────────────────────────────────────────────────────────────────────


def encode_request_frame(
    api: Api, version: int, *, correlation_id: int, client_id: str | None, body: bytes
) -> bytes:
    raw = b"" if client_id is None else client_id.encode()
    head = _HEAD.pack(api.key, version, correlation_id)
    head += _CLIENT_ID.pack(-1 if client_id is None else len(raw)) + raw
    if api.request_header_version(version) >= 2:
        head += b"\x00"
    return _LENGTH.pack(len(head) + len(body)) + head + body


def parse_response_header(buffer: Buffer, header_version: int) -> tuple[int, int]:
    """Return the correlation id and the start of the body, of a frame without its length."""
    try:
        (correlation_id,) = _LENGTH.unpack_from(buffer, 0)
        position = skip_tags(buffer, LENGTH_BYTES) if header_version >= 1 else LENGTH_BYTES
    except BROKEN as error:
        raise malformed("response header", error) from None
    if position > len(buffer):
        raise short()
    return correlation_id, position
