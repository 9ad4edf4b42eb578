"""The attack table as tests: each takes one attack and asserts the answer it must get. Three real
servers for all of them: one that believes everybody (as on a developer's machine), one that asks
everybody who they are, one behind TLS. ``docs/security.md`` says which test proves which row."""

from __future__ import annotations

import gc
import itertools
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.attacks.kit import EVERYTHING, ROOT, Operator, sqs_as
from tests.attacks.push_stage import sns_as
from tests.attacks.stalls import TURN_MS_MAX, Stalled, longest_pause_ms
from tests.harness.client import RawClient
from tests.harness.endpoint import Endpoint
from tests.harness.server import Server, penstock_command

MIB = 1_048_576
GROWTH_BYTES_MAX = 160 * MIB  # of a server's resident memory over everything that is tried on it
HEADER_SECONDS = 1.0
BODY_SECONDS = 2.0
SHORT = {
    "PENSTOCK_HTTP__HEADER_MS_MAX": str(int(HEADER_SECONDS * 1_000)),
    "PENSTOCK_HTTP__BODY_MS_MAX": str(int(BODY_SECONDS * 1_000)),
}

_numbers = itertools.count(1)
STALL_TRIES = 6


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Repeat a test that measured a long turn of the loop (``stalls.Stalled``)."""
    if not pyfuncitem.path.name.startswith("test_stalls"):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    for left in reversed(range(STALL_TRIES)):
        try:
            pyfuncitem.obj(**arguments)
        except Stalled as stalled:
            is_void = not left and (stalled.is_void or longest_pause_ms() > TURN_MS_MAX)
            if not left and not is_void:
                raise
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # sockets of the failed try
                stalled.with_traceback(None)
                gc.collect()
            if is_void:
                pytest.skip(f"the host was busy each time: {stalled}")
        else:
            break
    return True


def _run(server: Server) -> Iterator[Server]:
    with server as running:
        before = running.rss_bytes()
        yield running
        grown = running.rss_bytes() - before
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()
        assert '"level":"error"' not in running.stderr, running.stderr_tail()
        assert grown < GROWTH_BYTES_MAX, f"memory grew by {grown / MIB:.0f} MiB"


@pytest.fixture(scope="session")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Believes everybody."""
    data = tmp_path_factory.mktemp("open")
    yield from _run(Server(data, fsync="never", kafka_port=0, env=SHORT))


@pytest.fixture(scope="session")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Asks everybody who they are."""
    folder = tmp_path_factory.mktemp("locked")
    secret = folder / "secret"
    secret.write_text(str(ROOT.secret_key))
    secret.chmod(0o600)
    env = {
        **SHORT,
        "PENSTOCK_ROOT_KEY_ID": str(ROOT.access_key),
        "PENSTOCK_ROOT_SECRET_FILE": str(secret),
    }
    arguments = ["--auth", "on"]
    server = Server(folder / "data", fsync="never", kafka_port=0, arguments=arguments, env=env)
    yield from _run(server)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


def make_certificates(folder: Path, *more: str) -> None:
    command = [penstock_command(), "generate", "certs", "--out", str(folder), *more]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(scope="session")
def secure(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Server]:
    """Behind TLS."""
    data = tmp_path_factory.mktemp("secure")
    arguments = [
        *("--tls-cert", f"{certificates}/penstock.pem"),
        *("--tls-key", f"{certificates}/penstock-key.pem"),
    ]
    yield from _run(Server(data, fsync="never", kafka_port=0, arguments=arguments))


@pytest.fixture(scope="session")
def operator(locked: Server) -> Operator:
    return Operator(locked)


@pytest.fixture(scope="session")
def root(locked: Server) -> Iterator[Any]:
    client = sqs_as(locked, ROOT)
    yield client
    client.close()


@pytest.fixture(scope="session")
def stranger(locked: Server, operator: Operator) -> Iterator[Any]:
    """Another tenant, who may do everything there."""
    _, credentials = operator.user(EVERYTHING, tenant=operator.tenant())
    client = sqs_as(locked, credentials)
    yield client
    client.close()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as made:
        yield made


@pytest.fixture(scope="module")
def sns(locked: Server) -> Iterator[Any]:
    client = sns_as(locked, ROOT)
    yield client
    client.close()


@pytest.fixture
def name() -> Callable[..., str]:
    """``name()`` or ``name(".fifo")``: one that no other test has."""
    return lambda suffix="": f"attacked-{next(_numbers)}{suffix}"


@pytest.fixture
def bystander(open_server: Server) -> Iterator[RawClient]:
    """Another client: works before, and on the same connection after, whatever a test does."""
    client = RawClient(open_server.port)
    client.call("ListQueues", {})
    yield client
    client.call("ListQueues", {})
    client.close()


@pytest.fixture(autouse=True, scope="module")
def sockets_of_clients_are_theirs() -> Iterator[None]:
    """Some clients leave sockets to the garbage collector; that must not be found in the middle of
    other tests."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
