"""``penstock serve --workers``: the ports between the processes are open to every user of the
machine, and answer nobody who cannot prove the secret that the parent drew."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.attacks.kit import ROOT, Operator, send, sqs_as
from tests.harness.server import Server, stable_port

from penstock.calls.internal.client import InternalClient
from penstock.calls.internal.connection import NodeEnd
from penstock.metadata.security.identity_entries import decode_user, user_key
from penstock.metadata.serving.calls import GET, TXN, Get
from penstock.metadata.store import Txn
from penstock.model.levels import Levels
from penstock.wire.internal.calls import PING, Nothing
from penstock.wire.internal.faults import Unreachable

READY_SECONDS_MAX = 120.0
BACK_SECONDS_MAX = 60.0
CLUSTER = "penstock"
_INTERNAL = re.compile(r"--internal \S+:(\d+)")
_NODE = re.compile(r"--node (\d+)")
_ROLE = re.compile(r"--role metadata\b")

# A server whose secret the test knows. The value is computed there, so that the driver's own
# arguments do not contain it.
_SEED = "the secret of this test"
SECRET = hashlib.sha256(_SEED.encode()).digest()
_DRIVER = (
    "import hashlib, sys; from penstock.node import workers;"
    f" workers.draw_secret = lambda: hashlib.sha256({_SEED!r}.encode()).digest();"
    " from penstock.cli.main import main; sys.exit(main())"
)


class Workers(Server):
    def command(self) -> list[str]:
        return [sys.executable, "-c", _DRIVER, *super().command()[1:]]

    def children(self) -> dict[int, str]:
        """The command lines of its processes, by process id."""
        found = {}
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            for pid in map(int, (task / "children").read_text().split()):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                found[pid] = line.replace(b"\0", b" ").decode()
        return found

    def ports(self) -> list[int]:
        """The internal ports, that of the metadata first."""
        lines = sorted(self.children().values(), key=lambda line: _ROLE.search(line) is None)
        return [int(found[1]) for line in lines if (found := _INTERNAL.search(line))]

    def worker(self, number: int) -> int | None:
        for pid, line in self.children().items():
            node = _NODE.search(line)
            if node is not None and int(node[1]) == number:
                return pid
        return None


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("workers")
    secret = folder / "secret"
    secret.write_text(str(ROOT.secret_key))
    env = {
        "PENSTOCK_ROOT_KEY_ID": str(ROOT.access_key),
        "PENSTOCK_ROOT_SECRET_FILE": str(secret),
    }
    arguments = ("--workers", "2", "--auth", "on")
    data = folder / "data"
    server = Workers(data, port=stable_port(), kafka_port=0, arguments=arguments, env=env)
    try:
        server.start(seconds=READY_SECONDS_MAX)  # four processes one after another
        yield server
        assert server.stop() == 0, server.stderr_tail()
        server.assert_no_traceback()
    finally:
        server.kill()


def _client(port: int, secret: bytes | None) -> InternalClient:
    return InternalClient("127.0.0.1", port, NodeEnd("w", CLUSTER, levels=Levels(), secret=secret))


async def _ping(port: int, secret: bytes | None) -> str:
    """Why the greeting was refused; empty: it was not."""
    client = _client(port, secret)
    try:
        await client.call(PING, Nothing(), timeout_ms=10_000)
    except Unreachable as error:
        return str(error)
    finally:
        await client.close()
    return ""


def ping(port: int, secret: bytes | None) -> str:
    return asyncio.run(_ping(port, secret))


def test_a_greeting_without_the_secret_is_refused_on_every_internal_port(workers: Workers) -> None:
    ports = workers.ports()
    assert len(ports) == 3, "the metadata and two workers"
    for port in ports:
        assert "secret" in ping(port, None)
        assert "secret" in ping(port, b"x" * 32)
        assert ping(port, SECRET) == ""


async def _promote(port: int, user: str, account: str, secret: bytes | None) -> None:
    """Make a user an operator, as a node of the cluster could."""
    client = _client(port, secret)
    key = user_key(account, user)
    try:
        entry = (await client.call(GET, Get(key), timeout_ms=10_000)).entry
        assert entry is not None
        decode_user(entry.value)
        fields = json.loads(entry.value)
        fields["user"]["is_operator"] = True
        changed = json.dumps(fields).encode()
        txn = Txn(compare=((key, entry.version),), puts=((key, changed),))
        await client.call(TXN, txn, timeout_ms=10_000)
    finally:
        await client.close()


def test_a_local_process_makes_nobody_an_operator(workers: Workers) -> None:
    root = Operator(workers)
    name, credentials = root.user()
    account = str(root.ask("GET", f"users/{name}")["account"])
    user = Operator(workers, credentials)
    tenant = {"name": "taken-over"}
    assert user.try_("POST", "tenants", tenant)[0] == 403
    metadata = workers.ports()[0]
    with pytest.raises(Unreachable, match="secret"):
        asyncio.run(_promote(metadata, name, account, None))
    assert user.try_("POST", "tenants", tenant)[0] == 403
    # The same attack with the secret shows that nothing else stood in its way.
    asyncio.run(_promote(metadata, name, account, SECRET))
    until = time.monotonic() + BACK_SECONDS_MAX
    while user.try_("POST", "tenants", tenant)[0] != 201:
        assert time.monotonic() < until, "the attack itself no longer works: mend the test"
        time.sleep(0.05)


def test_neither_arguments_nor_environment_nor_files_hold_the_secret(workers: Workers) -> None:
    hexed = SECRET.hex().encode()
    forms = (
        SECRET,
        hexed,
        hexed.upper(),
        base64.b64encode(SECRET),
        base64.urlsafe_b64encode(SECRET),
    )
    places = [
        Path(f"/proc/{pid}/{name}")
        for pid in (workers.pid, *workers.children())
        for name in ("cmdline", "environ")
    ]
    places += [path for path in workers.data.rglob("*") if path.is_file()]
    assert len(places) > 8 + 10, "four processes, and the files of three nodes"
    for place in places:
        try:
            content = place.read_bytes()
        except FileNotFoundError:
            continue  # a file that a worker writes and then renames
        assert not any(form in content for form in forms), place
    said = workers.stderr.encode()
    assert not any(form in said for form in forms)


def test_a_worker_that_was_started_again_has_the_secret(workers: Workers) -> None:
    before = workers.worker(2)
    assert before is not None
    line = workers.children()[before]
    found = _INTERNAL.search(line)
    admin = re.search(r"--admin (\S+)", line)
    assert found is not None
    assert admin is not None
    port = int(found[1])
    os.kill(before, signal.SIGKILL)
    until = time.monotonic() + BACK_SECONDS_MAX
    while workers.worker(2) in (None, before) or not _is_ready(admin[1]):
        assert time.monotonic() < until, workers.stderr_tail()
        time.sleep(0.05)
    assert "secret" in ping(port, None)
    assert ping(port, SECRET) == ""
    sqs = sqs_as(workers, ROOT)
    url = sqs.create_queue(QueueName="after")["QueueUrl"]
    assert sqs.list_queues(QueueNamePrefix="after")["QueueUrls"] == [url]
    sqs.close()


def _is_ready(host: str) -> bool:
    try:
        return send(host, "GET", "/readyz", None, {})[0] == 200
    except OSError:
        return False
