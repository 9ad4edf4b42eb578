"""A Kafka connection by hand: requests as our own codecs write them, or bytes that no codec would,
and one answer at a time. None: the server hung up."""

from __future__ import annotations

import struct
from importlib import import_module
from typing import Any

from tests.harness.raw_http import RawConnection
from tests.harness.server import Server

from penstock.wire.kafka.apis import APIS, encode_request_frame, parse_response_header

KEYS = {api.name: key for key, api in APIS.items()}
_BY_HAND = {"Produce": "produce", "Fetch": "fetch"}


def request_class(name: str) -> type[Any]:
    """Of an API, by its name."""
    path = _BY_HAND.get(name, f"generated.{APIS[KEYS[name]].snake}")
    found: type[Any] = getattr(import_module(f"penstock.wire.kafka.{path}"), f"{name}Request")
    return found


class Wire(RawConnection):
    def __init__(self, server: Server, *, client_id: str | None = None) -> None:
        assert server.kafka_port is not None
        super().__init__(server.kafka_port)
        self.client_id = client_id

    def __enter__(self) -> Wire:
        return self

    def read_frame(self) -> bytes | None:
        head = self._read(4)
        return None if head is None else self._read(int.from_bytes(head, "big"))

    def _read(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                chunk = self.socket.recv(count - len(data))
            except ConnectionResetError:
                return None
            if not chunk:
                return None
            data += chunk
        return data

    def ask(self, name: str, version: int, **fields: Any) -> Any:
        return self.ask_for(name, version, request_class(name)(**fields))

    def ask_for(self, name: str, version: int, request: Any) -> Any:
        api = APIS[KEYS[name]]
        self.send(self.frame(name, version, api.codec().encode_request(request, version)))
        reply = self.read_frame()
        if reply is None:
            return None
        _, at = parse_response_header(reply, api.response_header_version(version))
        return api.codec().decode_response(reply, at, version)

    def log_in(self, name: str, secret: str) -> None:
        self.ask("SaslHandshake", 1, mechanism="PLAIN")
        reply = self.ask("SaslAuthenticate", 2, auth_bytes=f"\0{name}\0{secret}".encode())
        assert reply.error_code == 0, reply

    def frame(self, name: str, version: int, body: bytes) -> bytes:
        return encode_request_frame(
            APIS[KEYS[name]], version, correlation_id=7, client_id=self.client_id, body=body
        )

    def is_closed(self) -> bool:
        """Without having said anything more."""
        reply = self.read_until_closed()
        return reply.is_closed and not reply.data


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body
