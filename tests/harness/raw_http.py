"""HTTP by hand, for what no client library will send: malformed heads, half requests, two requests
in one breath. Every wait has a deadline."""

from __future__ import annotations

import socket
from dataclasses import dataclass

SECONDS_MAX = 15.0


@dataclass(frozen=True, slots=True)
class RawReply:
    """All that came until the server closed or fell silent."""

    data: bytes
    is_closed: bool

    @property
    def statuses(self) -> list[int]:
        """One per answer on the connection. Bodies of errors never contain a status line."""
        parts = self.data.split(b"HTTP/1.1 ")[1:]
        return [int(part[:3]) for part in parts]


class RawConnection:
    def __init__(self, port: int, *, seconds: float = SECONDS_MAX) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=seconds)

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """False when the server has closed already, which is an answer too."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def read_until_closed(self) -> RawReply:
        chunks: list[bytes] = []
        while True:
            try:
                chunk = self.socket.recv(65_536)
            except ConnectionResetError:
                return RawReply(b"".join(chunks), is_closed=True)
            except TimeoutError:
                return RawReply(b"".join(chunks), is_closed=False)
            if not chunk:
                return RawReply(b"".join(chunks), is_closed=True)
            chunks.append(chunk)

    def read_reply(self) -> RawReply:
        """One answer with a Content-Length, on a connection that may stay open."""
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = self.socket.recv(65_536)
            if not chunk:
                return RawReply(data, is_closed=True)
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        while len(body) < length:
            chunk = self.socket.recv(65_536)
            if not chunk:
                return RawReply(data, is_closed=True)
            body += chunk
            data += chunk
        return RawReply(data, is_closed=False)


def json_request(operation: str, body: bytes, *, headers: str = "") -> bytes:
    """A well-formed call, to be sent as it is or spoilt."""
    head = (
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.0\r\n"
        f"X-Amz-Target: AmazonSQS.{operation}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    )
    return head.encode("latin-1") + body


def form_request(body: bytes, *, path: str = "/") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("latin-1") + body
