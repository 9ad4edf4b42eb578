"""A small HTTP server in a thread: real sockets, answers written by each test."""

import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pytest

from penstock.cli import main

Answer = tuple[int, Any]
Json = dict[str, Any]


class Endpoint:
    """Answers SQS and SNS actions from ``actions`` and paths from ``paths``; keeps what was
    asked."""

    def __init__(self) -> None:
        self.actions: dict[str, Callable[[Json], Answer] | Answer | Json] = {}
        self.paths: dict[str, Callable[[Json], Answer] | Answer | Json] = {}
        self.asked: list[tuple[str, Json]] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        self.is_closing_idle = False  # hang up after each answer without saying so
        self.lost = 0  # the number of the request whose answer is lost with the connection
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                endpoint.connections += 1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers["content-type"].startswith("application/x-www-form-urlencoded"):
                    fields = dict(parse_qsl(body.decode(), keep_blank_values=True))
                    self._answer(endpoint.actions, fields["Action"], fields)
                    return
                action = self.headers.get("x-amz-target", "").removeprefix("AmazonSQS.")
                answers = endpoint.actions if action else endpoint.paths
                path = self.path.partition("?")[0]
                self._answer(answers, action or path, json.loads(body))

            do_PATCH = do_POST  # noqa: N815

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                self._answer(endpoint.paths, parts.path, dict(parse_qsl(parts.query)))

            do_DELETE = do_GET  # noqa: N815

            def _answer(self, answers: dict[str, Any], key: str, request: Json) -> None:
                endpoint.asked.append((key, request))
                endpoint.headers.append({k.lower(): v for k, v in self.headers.items()})
                if len(endpoint.asked) == endpoint.lost:
                    self.close_connection = True
                    return
                answer = answers.get(key, (404, {"__type": "x#NoSuchAnswer", "message": key}))
                if callable(answer):
                    answer = answer(request)
                status, value = answer if isinstance(answer, tuple) else (200, answer)
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                self.close_connection = endpoint.is_closing_idle

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.paths["/_penstock/info"] = {"admin": self.url}
        self.actions["GetQueueUrl"] = lambda request: (
            200,
            {"QueueUrl": f"{self.url}/000000000000/{request['QueueName']}"},
        )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def requests(self, key: str) -> list[Json]:
        return [request for asked, request in self.asked if asked == key]


def refusal(fault: str, status: int = 400, message: str = "No.") -> Answer:
    return status, {"__type": f"com.amazonaws.sqs#{fault}", "message": message}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    yield server
    server.close()


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Cli = Callable[..., Result]


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    endpoint: Endpoint,
    tmp_path_factory: pytest.TempPathFactory,
) -> Cli:
    """Runs a command line in this process, against the test's own server."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    for name in ("PENSTOCK_ADMIN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PENSTOCK_ENDPOINT", endpoint.url)

    def call(*args: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main.run(args)
        captured = capsys.readouterr()
        return Result(int(code), captured.out, captured.err)

    return call
