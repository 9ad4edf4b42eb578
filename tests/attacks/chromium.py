"""A real browser, an attacker's web server, and ports that change hands between them.

A ``Relay`` is a port that first serves the attacker's page and later the penstock server, as a name
does that is pointed at another address after its page was loaded: for the browser, page and server
are then one origin. A relay passes on what the browser sends, header by header, and keeps it, so
that a test knows which requests arrived and how the server replied."""

from __future__ import annotations

import http.client
import json
import os
import queue
import signal
import subprocess
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

BROWSER = "/usr/bin/chromium"
SECONDS_MAX = 60.0
_HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "content-length")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request of the browser that reached the penstock server, and the reply."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    status: int
    reply: bytes
    reply_headers: dict[str, str]

    @property
    def host(self) -> str:
        return self.headers["host"].rpartition(":")[0]


class _Port:
    """A web server on a loopback port, with a thread per request."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.owner = self  # type: ignore[attr-defined]
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    def handle_one_request(self) -> None:
        """Every method is answered alike."""
        self.raw_requestline = self.rfile.readline(65_537)
        if self.raw_requestline and self.parse_request():
            self.answer(self.rfile.read(int(self.headers.get("content-length", "0"))))
            self.wfile.flush()
        self.close_connection = True

    def answer(self, body: bytes) -> None:
        raise NotImplementedError

    def reply(self, status: int, body: bytes, headers: list[tuple[str, str]]) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Relay(_Port):
    def __init__(self, page: bytes) -> None:
        self.page = page
        self.target = ""  # HOST:PORT of the penstock server; empty: serve the page
        self.exchanges: list[Exchange] = []
        super().__init__(_RelayHandler)


class _RelayHandler(_Handler):
    def answer(self, body: bytes) -> None:
        relay: Relay = self.server.owner  # type: ignore[attr-defined]
        if not relay.target:
            self.reply(200, relay.page, [("Content-Type", "text/html")])
            return
        connection = http.client.HTTPConnection(relay.target, timeout=SECONDS_MAX)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        reply = connection.getresponse()
        data = reply.read()
        sent, got = (
            {name.lower(): value for name, value in headers}
            for headers in (self.headers.items(), reply.getheaders())
        )
        relay.exchanges.append(
            Exchange(self.command, self.path, sent, body, reply.status, data, got)
        )
        connection.close()
        kept = [pair for pair in reply.getheaders() if pair[0].lower() not in _HOP_BY_HOP]
        self.reply(reply.status, data, kept)


class Attacker(_Port):
    """The attacker's own server: serves ``page``, holds back ``/go`` and ``/leave`` until the
    events of these names are set, and collects what pages post to ``/report/NAME``."""

    def __init__(self, page: bytes) -> None:
        self.page = page
        self.go = threading.Event()
        self.leave = threading.Event()
        self._reports: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._early: dict[str, Any] = {}
        super().__init__(_AttackerHandler)

    def add(self, name: str, report: Any) -> None:
        self._reports.put((name, report))

    def report(self, name: str) -> Any:
        """Wait until a page reports under ``name``, and return the report."""
        while name not in self._early:
            try:
                found, report = self._reports.get(timeout=SECONDS_MAX)
            except queue.Empty:
                raise AssertionError(f"the page did not report {name}: {self._early}") from None
            self._early[found] = report
        return self._early[name]


class _AttackerHandler(_Handler):
    def answer(self, body: bytes) -> None:
        attacker: Attacker = self.server.owner  # type: ignore[attr-defined]
        readable = [("Access-Control-Allow-Origin", "*"), ("Content-Type", "text/html")]
        if self.path in ("/go", "/leave"):
            (attacker.go if self.path == "/go" else attacker.leave).wait(SECONDS_MAX)
            self.reply(200, b"", readable)
        elif self.path.startswith("/report/"):
            attacker.add(self.path.removeprefix("/report/"), json.loads(body))
            self.reply(200, b"", readable)
        else:
            self.reply(200, attacker.page, readable)


class Chromium:
    def __init__(self, folder: Path, url: str, names: tuple[str, ...]) -> None:
        """``names`` resolve to the loopback address."""
        self._command = [
            BROWSER,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--disable-dev-shm-usage", "--disable-features=HttpsUpgrades"),
            f"--user-data-dir={folder}",
            f"--host-resolver-rules={', '.join(f'MAP {name} 127.0.0.1' for name in names)}",
            # Without it a headless browser ends as soon as the page has loaded.
            "--remote-debugging-port=0",
            url,
        ]

    def __enter__(self) -> Chromium:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(SECONDS_MAX)
