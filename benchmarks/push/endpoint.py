"""The endpoint of the webhooks, in a process of its own. The path of a request says how it is
answered: ``/hang…`` never, ``/fail…`` with 500, ``/gone…`` with 410 after a hundred requests,
``/room-N…`` after some 50 ms, but with 429 if more than N requests are in progress."""

import asyncio
import os
import time
from dataclasses import dataclass, field
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import uvloop

SECONDS_MAX: Final = 120.0  # only a hang takes so long
GONE_AFTER: Final = 100  # requests to a path /gone… that get 200
# How long requests to /room… take. They differ, as those of real endpoints do.
ROOM_SECONDS: Final = (0.03, 0.05, 0.07, 0.04, 0.06)


def _reply(status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok".encode()


OK: Final = _reply("200 OK")
FAILURE: Final = _reply("500 Internal Server Error")
GONE: Final = _reply("410 Gone")
BUSY: Final = _reply("429 Too Many Requests")


class Arrival(NamedTuple):
    """A request to a path ``/room…``."""

    at_ns: int
    in_progress: int  # this one included
    is_refused: bool


@dataclass
class Seen:
    """What the endpoint has seen of one path."""

    count: int = 0
    last_ns: int = 0  # time of the last request
    late_ms: list[float] = field(default_factory=list)  # since the times that bodies name
    arrivals: list[Arrival] = field(default_factory=list)
    in_progress: int = 0


class _Site:
    def __init__(self) -> None:
        self.paths: dict[str, Seen] = {}
        self.reset_ns = 0

    def reset(self) -> None:
        self.paths.clear()
        self.reset_ns = time.monotonic_ns()

    def count(self, prefix: str) -> tuple[int, int]:
        """Return the number of requests, and of those whose bodies name a time."""
        found = [seen for path, seen in self.paths.items() if path.startswith(prefix)]
        return sum(seen.count for seen in found), sum(len(seen.late_ms) for seen in found)


class _Protocol(asyncio.Protocol):
    def __init__(self, site: _Site) -> None:
        self._site = site
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        data = self._held + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(data) < end + 4 + length:
                break
            path = data.split(b" ", 2)[1].decode()
            self._answer(path, data[end + 4 : end + 4 + length])
            data = data[end + 4 + length :]
        self._held = data

    def _answer(self, path: str, body: bytes) -> None:
        seen = self._site.paths.get(path)
        if seen is None:
            seen = self._site.paths[path] = Seen()
        seen.count += 1
        seen.last_ns = time.monotonic_ns()
        if body.startswith(b"at "):
            sent_ns = int(body[3:].split(b" ", 1)[0])
            if sent_ns >= self._site.reset_ns:  # a replay repeats older ones
                seen.late_ms.append((seen.last_ns - sent_ns) / 1e6)
        if path.startswith("/room-"):
            self._answer_later(seen, int(path.split("-")[1]))
        elif path.startswith("/fail"):
            self._transport.write(FAILURE)
        elif path.startswith("/gone") and seen.count > GONE_AFTER:
            self._transport.write(GONE)
        elif not path.startswith("/hang"):
            self._transport.write(OK)

    def _answer_later(self, seen: Seen, room: int) -> None:
        is_refused = seen.in_progress >= room
        seen.arrivals.append(Arrival(seen.last_ns, seen.in_progress + 1, is_refused))
        if is_refused:
            self._transport.write(BUSY)
            return
        seen.in_progress += 1

        def end() -> None:
            seen.in_progress -= 1
            self._transport.write(OK)

        delay_s = ROOM_SECONDS[seen.count % len(ROOM_SECONDS)]
        asyncio.get_running_loop().call_later(delay_s, end)


def _serve(pipe: Connection, cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)

    async def run() -> None:
        site = _Site()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Protocol(site), "127.0.0.1", 0, backlog=2_048)
        pipe.send(server.sockets[0].getsockname()[1])

        def asked() -> None:
            what, path = pipe.recv()
            if what == "reset":
                site.reset()
            pipe.send(site.count(path) if what == "count" else site.paths.get(path, Seen()))

        loop.add_reader(pipe.fileno(), asked)
        await asyncio.Event().wait()

    uvloop.run(run())


class Endpoint:
    def __init__(self, cores: set[int]) -> None:
        self._near, far = Pipe()
        context = get_context("spawn")
        self._process = context.Process(target=_serve, args=(far, cores), daemon=True)
        self._process.start()
        self.port: int = self._near.recv()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def _ask(self, what: str, path: str = "") -> Any:
        self._near.send((what, path))
        return self._near.recv()

    def seen(self, path: str) -> Seen:
        found = self._ask("read", path)
        assert isinstance(found, Seen)
        return found

    def reset(self) -> None:
        """Forget all requests."""
        self._ask("reset")

    def count(self, prefix: str) -> int:
        """Return how many requests have come to the paths that begin with ``prefix``."""
        return int(self._ask("count", prefix)[0])

    async def wait_for(self, prefix: str, wanted: int, *, is_timed: bool = False) -> None:
        """Wait for a number of requests, or of requests whose bodies name a time."""
        ends_at = time.monotonic() + SECONDS_MAX
        while (found := self._ask("count", prefix)[is_timed]) < wanted:
            assert time.monotonic() < ends_at, f"{prefix}: {found} of {wanted} requests"
            await asyncio.sleep(0.005)

    def close(self) -> None:
        self._process.terminate()
        self._process.join()
