"""Another user of the same machine cannot read what a server, a backup or a local cluster writes:
folders have mode 0700 and files mode 0600, whatever the umask of the shell and whatever modes an
older version left behind."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.e2e.test_cluster_cli import QUIET, penstock
from tests.harness.client import RawClient
from tests.harness.etcd import LACKING
from tests.harness.server import Server, ServerFailed, stable_port


@contextlib.contextmanager
def lax() -> Iterator[None]:
    """A shell whose umask gives everybody every right."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Every path whose mode is not 0700 (folders) or 0600 (files), with the mode."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and stat.S_IMODE(mode) != (0o700 if path.is_dir() else 0o600):
            found[str(path)] = oct(mode)
    return found


def work(server: Server) -> None:
    """Make the server write: metadata, segments, indexes, coordinator logs, producer ids."""
    client = RawClient(server.port)
    url = client.call("CreateQueue", {"QueueName": "jobs"})["QueueUrl"]
    for _ in range(3):
        client.call("SendMessage", {"QueueUrl": url, "MessageBody": "x"})
    client.call("ReceiveMessage", {"QueueUrl": url})
    client.close()
    producer = Producer({"bootstrap.servers": server.kafka, "enable.idempotence": True})
    producer.produce("events", b"x")
    assert producer.flush(20) == 0


def test_a_server_writes_for_its_user_alone(tmp_path: Path) -> None:
    with lax(), Server(tmp_path / "data", kafka_port=0) as server:
        work(server)
        assert modes(server.data) == {}
        assert len(list(server.data.rglob("*"))) > 10
        server.restart()
        assert modes(server.data) == {}
        assert server.stop() == 0
        assert modes(server.data) == {}


def test_modes_are_repaired_at_start(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    outside.chmod(0o644)
    with Server(tmp_path / "data", kafka_port=0) as server:
        work(server)
        assert server.stop() == 0
        for path in (server.data, *server.data.rglob("*")):
            if path.name != "master.key":
                path.chmod(0o755 if path.is_dir() else 0o664)
        (server.data / "link").symlink_to(outside)
        server.start()
        assert modes(server.data) == {}
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644


def test_a_master_key_that_others_could_read_is_rejected_not_repaired(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        assert server.stop() == 0
        (server.data / "master.key").chmod(0o644)
        with pytest.raises(ServerFailed, match="chmod 600"):
            server.start()


def test_workers_write_for_their_user_alone(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", kafka_port=0, arguments=["--workers", "2"])
    with lax(), contextlib.ExitStack() as stack:
        stack.push(server.__exit__)
        server.start(seconds=120)  # four processes
        work(server)
        assert modes(server.data) == {}
        assert server.stop() == 0
        assert modes(server.data) == {}


def test_backups_and_restored_folders_are_for_their_user_alone(tmp_path: Path) -> None:
    backups, new = tmp_path / "backups", tmp_path / "new"
    with lax(), Server(tmp_path / "data", kafka_port=0) as server:
        work(server)
        env = {"PENSTOCK_ENDPOINT": server.url}
        done = penstock("backup", "create", "--to", str(backups), env=env)
        assert done.code == 0, done
        assert modes(backups) == {}
        done = penstock("backup", "restore", done.json["path"], "--data", str(new))
        assert done.code == 0, done
        assert modes(new) == {}
        assert len(list(new.rglob("*"))) > 5


@pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
def test_a_local_cluster_writes_for_its_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    up = ("cluster", "up", "--detach", "--data", str(folder), "--port-base", str(stable_port()))
    folder.mkdir()
    (folder / "older").write_text("x")
    (folder / "older").chmod(0o644)
    try:
        with lax():
            done = penstock(*up, "--nodes", "3", env=QUIET)
        assert done.code == 0, done
        endpoint = {"PENSTOCK_ENDPOINT": done.lines[1]["http"]}
        assert penstock("queue", "create", "jobs", env=endpoint).code == 0
        assert penstock("message", "send", "jobs", "hello", env=endpoint).code == 0
        assert modes(folder) == {}
        assert {"etcd", "logs", "n1", "n2", "n3"} <= {path.name for path in folder.iterdir()}
    finally:
        assert penstock("cluster", "down", "--data", str(folder)).code == 0
    assert modes(folder) == {}
