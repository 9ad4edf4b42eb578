"""Reads requests with httptools on uvloop, body included, and answers ``{}`` to all of them.

What this costs, every Python server on this stack pays before it does anything of its own.
"""

import asyncio
import signal

import httptools
import uvloop

REPLY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\n"
    b"x-amzn-RequestId: 5d672d79-c15b-4316-ad92-79b0855cfba6\r\nContent-Length: 2\r\n\r\n{}"
)


class BareProtocol(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # TCP: always a full transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._headers = {}
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower().decode("latin-1")] = value.decode("latin-1")

    def on_body(self, part: bytes) -> None:
        self._body.append(part)

    def on_message_complete(self) -> None:
        b"".join(self._body)
        self.transport.write(REPLY)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    listener = await loop.create_server(BareProtocol, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    print(f"ready http=http://127.0.0.1:{port}", flush=True)
    await ended.wait()
    listener.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())
