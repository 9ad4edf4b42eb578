"""A pytest plugin that runs a Penstock server for the tests.

The package registers the plugin (entry point ``pytest11``), so tests can use its fixtures without
an import. Until a fixture is used, only the standard library and pytest are imported, because every
run of pytest loads this module if Penstock is installed."""

import os
import queue
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import pytest

READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 30.0
RESET_SECONDS_MAX: Final = 30.0
LOG_LINES_SHOWN: Final = 20  # from the log of a server that did not start
REGION: Final = "us-east-1"
_CREDENTIALS: Final = {"aws_access_key_id": "penstock", "aws_secret_access_key": "penstock"}


class PenstockServer:
    """A ``penstock serve`` process on free loopback ports, with authentication off."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "server.log"
        # Settings in the environment of the test run must not reach the server.
        env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
        command = [sys.executable, "-m", "penstock", "serve", "--data", str(folder / "data")]
        command += ["--config", os.devnull, "--fsync", "never", "--auth", "off"]
        for listener in ("--http", "--kafka", "--admin"):
            command += [listener, "127.0.0.1:0"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this very program
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                text=True,
                start_new_session=True,  # Ctrl-C reaches only pytest, which stops the server
            )
        try:
            found = self._wait_ready()
        except BaseException:
            self.stop()
            raise
        self.url = found["http"]
        self.admin_url = found["admin"]
        self.kafka_bootstrap = found["kafka"]

    def _wait_ready(self) -> dict[str, str]:
        """Wait for the first line of output, ``ready ...``, and return the addresses in it."""
        assert self._process.stdout is not None
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(self._process.stdout, lines), daemon=True)
        reader.start()
        try:
            line = lines.get(timeout=READY_SECONDS_MAX)
        except queue.Empty:
            line = ""
        if not line.startswith("ready "):
            said = self.log.read_text("utf-8", "replace").splitlines()[-LOG_LINES_SHOWN:]
            raise RuntimeError(
                "\n".join([f"penstock serve did not start; see {self.log}:", line.rstrip(), *said])
            )
        return dict(field.split("=", 1) for field in line.split()[1:])

    def reset(self) -> None:
        """Delete all queues, topics and messages, in every region."""
        request = urllib.request.Request(f"{self.url}/_penstock/reset", method="POST")  # noqa: S310
        with urllib.request.urlopen(request, timeout=RESET_SECONDS_MAX):  # noqa: S310 - loopback
            pass

    def stop(self) -> None:
        """Stop the server with SIGTERM, or kill it after 30 seconds."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _read(pipe: IO[str], lines: "queue.SimpleQueue[str]") -> None:
    """Put all lines of output into ``lines``, so that the server never blocks on a full pipe."""
    with pipe:
        for line in pipe:
            lines.put(line)
    lines.put("")  # the server has ended


@pytest.fixture(scope="session")
def penstock_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockServer]:
    """A server for the whole test run; with pytest-xdist, one for each worker."""
    server = PenstockServer(tmp_path_factory.mktemp("penstock"))
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def penstock(penstock_server: PenstockServer, monkeypatch: pytest.MonkeyPatch) -> PenstockServer:
    """The server, without the queues and topics of earlier tests.

    During the test ``boto3.client("sqs")`` without further arguments uses this server, because the
    endpoint, the region and credentials are set as environment variables."""
    penstock_server.reset()
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", penstock_server.url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    for name, value in _CREDENTIALS.items():
        monkeypatch.setenv(name.upper(), value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"):
        monkeypatch.delenv(name, raising=False)
    return penstock_server


@pytest.fixture(scope="session")
def _sqs_client(penstock_server: PenstockServer) -> Any:
    """A boto3 client that all tests share, because creating a client is slow."""
    try:
        import boto3
    except ModuleNotFoundError:
        pytest.fail("the fixture sqs needs boto3: pip install boto3", pytrace=False)
    session = boto3.Session(region_name=REGION, **_CREDENTIALS)
    return session.client("sqs", endpoint_url=penstock_server.url)


@pytest.fixture
def sqs(penstock: PenstockServer, _sqs_client: Any) -> Any:  # noqa: ARG001 - empties the server
    """A boto3 SQS client that is connected to an empty server."""
    return _sqs_client


@pytest.fixture
def kafka_bootstrap(penstock: PenstockServer) -> str:
    """The address ``host:port`` of an empty server, for ``bootstrap.servers`` of a Kafka client."""
    return penstock.kafka_bootstrap
