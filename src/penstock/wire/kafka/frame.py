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
from typing import NamedTuple

from penstock.wire.kafka.apis import API_VERSIONS, APIS, Api
from penstock.wire.kafka.malformed import UnsupportedVersion
from penstock.wire.kafka.primitives import BROKEN, Buffer, absent, malformed, short, skip_tags

_LENGTH = struct.Struct(">i")
_KEY_VERSION = struct.Struct(">hh")
_HEAD = struct.Struct(">hhi")
_HEAD_1 = struct.Struct(">hhih")  # with the length of the client id
_CLIENT_ID = struct.Struct(">h")
_RESPONSE_HEADERS = (struct.Struct(">i"), struct.Struct(">ix"))  # by header version

LENGTH_BYTES = _LENGTH.size
REQUEST_BYTES_MIN = _HEAD.size


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int  # start of the message


class UnknownApi(UnsupportedVersion):
    """No reply would be readable for the client, so the connection is closed."""

    def __init__(self, api_key: int, version: int) -> None:
        api = APIS.get(api_key)
        super().__init__(api.name if api else f"API key {api_key}", version)
        self.api_key = api_key


def parse_request_header(buffer: Buffer, position: int = 0) -> RequestHeader:
    """ApiVersions is accepted in any version: see ``is_unknown_api_versions``."""
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


def response_header(correlation_id: int, header_version: int) -> bytes:
    return _RESPONSE_HEADERS[header_version].pack(correlation_id)


def encode_response_frame(api: Api, version: int, correlation_id: int, body: bytes) -> bytes:
    header = response_header(correlation_id, api.response_header_version(version))
    return _LENGTH.pack(len(header) + len(body)) + header + body


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
