"""What is decided about workers before they are started: whose a folder is, what each is told,
which ports are kept for them, and how long to wait for one that keeps dying."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import SetupError
from penstock.node import worker_plan as plan
from penstock.node.configuration.config import Config, ConfigInvalid, load
from penstock.node.process.folder import FolderUnusable
from penstock.node.process.node_setup import SecretMissing, draw_secret, pipe_with, receive_secret
from penstock.node.worker_plan import (
    PAUSE_MS_MAX,
    PAUSE_MS_MIN,
    STEADY_MS,
    Addresses,
    next_pause_ms,
)
from penstock.node.workers import Child, NotStarted, Supervisor, _hold, _hold_addresses

AT = Addresses(
    http="127.0.0.1:9324",
    kafka=["127.0.0.1:9092", "127.0.0.1:9093"],
    admin=["127.0.0.1:9325", "127.0.0.1:5001"],
    internal=["127.0.0.1:5002", "127.0.0.1:5003"],
    metadata="127.0.0.1:5004",
    metadata_admin="127.0.0.1:5005",
)


def config(**flags: object) -> Config:
    given = {key.replace("__", "."): value for key, value in flags.items()}
    return load({"node.workers": 2, **given}, {}).config


# ── Folders ──────────────────────────────────────────────────────────────────────────────────


def test_a_new_folder_becomes_the_workers_and_may_get_more_of_them(tmp_path: Path) -> None:
    assert plan.check_folder(tmp_path, 2) == 0
    plan.write_marker(tmp_path, 2)
    assert plan.check_folder(tmp_path, 2) == 2
    assert plan.check_folder(tmp_path, 3) == 2
    with pytest.raises(FolderUnusable, match="--workers 2, or more"):
        plan.check_folder(tmp_path, 1)


@pytest.mark.parametrize("used", ["metadata.sqlite3", "topics", "cluster-id"])
def test_a_folder_of_a_single_process_is_not_for_workers(tmp_path: Path, used: str) -> None:
    plan.check_not_of_workers(tmp_path)
    (tmp_path / used).mkdir()
    with pytest.raises(FolderUnusable, match="without --workers"):
        plan.check_folder(tmp_path, 2)


def test_a_folder_of_workers_is_not_for_a_single_process(tmp_path: Path) -> None:
    plan.write_marker(tmp_path, 3)
    with pytest.raises(FolderUnusable, match="--workers 3"):
        plan.check_not_of_workers(tmp_path)


@pytest.mark.parametrize("content", ["", "{}", '{"workers":0}', '{"workers":1000}', "[3]"])
def test_a_damaged_marker_is_said_to_be(tmp_path: Path, content: str) -> None:
    (tmp_path / plan.MARKER_NAME).write_text(content)
    with pytest.raises(FolderUnusable, match="damaged"):
        plan.check_folder(tmp_path, 2)
    with pytest.raises(FolderUnusable, match="damaged"):
        plan.check_not_of_workers(tmp_path)


# ── Settings ─────────────────────────────────────────────────────────────────────────────────


def started_with(settings: dict[str, str], **given: object) -> Config:
    """The configuration that a process makes of what it is given, by flags and environment."""
    flags = {key.replace("__", "."): value for key, value in given.items()}
    shared = plan.shared_settings(is_auth_on=False)
    env = plan.environment({**shared, **settings}, flags, {"PENSTOCK_NODE__WORKERS": "2"})
    return load({}, env).config


def test_a_worker_is_a_node_with_one_replica_behind_the_shared_address(tmp_path: Path) -> None:
    settings = plan.worker_settings(config(), 2, tmp_path, "host", AT)
    made = started_with(settings, queue__partitions=4, log__fsync="never")
    assert made.node.workers == 0
    assert made.node.data == str(tmp_path / "worker-2")
    assert made.node.name == "host-2"
    assert (made.cluster.node, made.cluster.replicas, made.cluster.in_sync_min) == (2, 1, 1)
    assert (made.http.listen, made.http.reuse_port) == (AT.http, True)
    assert made.kafka.listen == "127.0.0.1:9093"
    assert made.admin.listen == "127.0.0.1:5001"
    assert made.internal.listen == "127.0.0.1:5003"
    assert made.metadata.service == AT.metadata
    # What was asked of all of them:
    assert made.queue.partitions == 4
    assert made.log.fsync.value == "never"


@pytest.mark.parametrize(("flags", "told"), [({}, 3), ({"queue.partitions": 1}, 1)])
def test_a_queue_has_a_partition_for_each_worker_unless_somebody_says_otherwise(
    tmp_path: Path, flags: dict[str, object], told: int
) -> None:
    loaded = load({"node.workers": 3, **flags}, {})
    settings = plan.worker_settings(loaded.config, 2, tmp_path, "host", AT)
    env = plan.environment(settings | plan.partition_settings(loaded), flags, {})
    assert load({}, env).config.queue.partitions == told


def test_partitions_given_by_a_file_count_for_workers_too(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("[queue]\npartitions = 2\n")
    loaded = load({"node.workers": 3}, {}, [file])
    assert plan.partition_settings(loaded) == {}


def test_the_metadata_process_serves_no_clients(tmp_path: Path) -> None:
    settings = plan.metadata_settings(tmp_path, "host", AT)
    made = started_with(settings, http__listen="0.0.0.0:80", kafka__listen="0.0.0.0:9092")
    assert made.node.roles == "metadata"
    assert made.http.listen == "127.0.0.1:0"
    assert made.kafka.listen == "off"
    assert made.internal.listen == AT.metadata


def test_settings_that_have_flags_can_be_seen_among_processes(tmp_path: Path) -> None:
    settings = plan.worker_settings(config(), 1, tmp_path, "host", AT)
    line = " ".join(plan.arguments(settings, "my.toml"))
    assert line.startswith("--config my.toml ")
    assert "--node 1" in line
    assert "--role frontend,broker" in line
    assert "reuse" not in line


def test_clients_are_told_of_one_port_for_each_worker() -> None:
    assert plan.advertised(config(), 2) == ""
    told = config(kafka__advertised="broker.example:9092")
    assert [plan.advertised(told, worker) for worker in (1, 2)] == [
        "broker.example:9092",
        "broker.example:9093",
    ]
    assert plan.advertised(config(kafka__advertised="[::1]:9092"), 2) == "[::1]:9093"


@pytest.mark.parametrize(
    "flags",
    [
        {"node__roles": "metadata", "internal__listen": "127.0.0.1:1"},
        {"cluster__node": 1, "cluster__etcd": "h:1", "internal__listen": "127.0.0.1:1"},
        {"metadata__service": "127.0.0.1:1", "node__roles": "frontend,broker"},
    ],
)
def test_workers_are_for_one_machine_by_itself(flags: dict[str, object]) -> None:
    with pytest.raises(ConfigInvalid, match="--workers cannot be used with"):
        config(**flags)


# ── Ports ────────────────────────────────────────────────────────────────────────────────────


def listen(at: str, *, is_shared: bool = False) -> socket.socket:
    """As a worker does."""
    host, _, port = at.rpartition(":")
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        one.bind((host, int(port)))
        one.listen()
    except OSError:
        one.close()
        raise
    return one


def test_workers_can_listen_where_ports_were_kept_and_others_are_noticed() -> None:
    asked = config(http__listen="127.0.0.1:0")
    with contextlib.ExitStack() as held:
        at = _hold_addresses(asked, held)
        ports = [*at.kafka, *at.admin, *at.internal, at.metadata, at.metadata_admin]
        assert len({at.http, *ports}) == 9
        for port in ports:
            held.enter_context(listen(port))
        for _ in range(2):
            held.enter_context(listen(at.http, is_shared=True))
        host, _, port = at.http.rpartition(":")
        # A second server on the same port would take half of the connections, unnoticed.
        with contextlib.ExitStack() as more, pytest.raises(OSError, match=at.http):
            _hold(more, host, int(port), is_shared=True)


def test_a_port_that_was_asked_for_by_name_has_to_be_free() -> None:
    name = Path("/proc/self/comm").read_text().strip()
    with contextlib.ExitStack() as held, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        asked = config(http__listen="127.0.0.1:0", kafka__listen=f"127.0.0.1:{taken}")
        with pytest.raises(SetupError, match=rf"port {taken} \(Kafka\) is in use") as refused:
            _hold_addresses(asked, held)
        assert refused.value.why == f"process {os.getpid()} ({name}) listens there"


def test_without_kafka_no_worker_serves_it() -> None:
    with contextlib.ExitStack() as held:
        asked = config(http__listen="127.0.0.1:0", kafka__listen="off")
        assert _hold_addresses(asked, held).kafka == ["off", "off"]


# ── Starting again ───────────────────────────────────────────────────────────────────────────


@given(st.lists(st.integers(0, 2 * STEADY_MS), min_size=1, max_size=40))
@settings(max_examples=50)
def test_pauses_grow_until_a_process_has_served_for_a_while(served: list[int]) -> None:
    before = 0
    for served_ms in served:
        pause_ms = next_pause_ms(before, served_ms)
        assert PAUSE_MS_MIN <= pause_ms <= PAUSE_MS_MAX
        if served_ms >= STEADY_MS or not before:
            assert pause_ms == PAUSE_MS_MIN
        else:
            assert pause_ms == min(2 * before, PAUSE_MS_MAX)
        before = pause_ms


# ── Processes: small ones that say what a server says ────────────────────────────────────────

SERVES = "import signal; print('ready http=http://here', flush=True); signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SERVES}"


def child(name: str, code: str) -> Child:
    return Child(name, [sys.executable, "-c", code], dict(os.environ), secret=draw_secret())


async def test_a_process_gets_the_secret_with_every_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shows = "import os; print(os.read(0, 99).hex()); print('ready', flush=True)"
    secret = draw_secret()
    one = Child("worker 1", [sys.executable, "-c", shows], dict(os.environ), secret=secret)
    for _ in range(2):
        one.start()
        await one.has_ended.wait()
    assert capsys.readouterr().out.split().count(secret.hex()) == 2


async def test_what_a_process_says_last_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Its end may be noticed before its output."""
    one = child("worker 1", "print('the disk is full')")
    one.start()
    asyncio.get_running_loop().remove_reader(one._stdout())
    await one.has_ended.wait()
    assert capsys.readouterr().out == "the disk is full\n"


@pytest.mark.parametrize(("given", "read"), [(b"", 0), (b"short", 5), (b"l" * 40, 33)])
def test_a_worker_without_the_whole_secret_does_not_start(given: bytes, read: int) -> None:
    reading = pipe_with(given)
    try:
        with pytest.raises(SecretMissing, match=f"has {read} bytes instead of 32"):
            receive_secret({"PENSTOCK_WORKER_SECRET_FD": str(reading)})
    finally:
        os.close(reading)
    with pytest.raises(SecretMissing, match="cannot be read"):
        receive_secret({"PENSTOCK_WORKER_SECRET_FD": str(reading)})
    assert receive_secret({}) is None


async def test_one_that_ends_before_it_is_ready_is_told_apart() -> None:
    broken = child("worker 1", "raise SystemExit(3)")
    broken.start()
    with pytest.raises(NotStarted, match="worker 1 ended with code 3"):
        await broken.ready()
    assert broken.served_ms == 0


async def test_one_that_is_ready_says_so_and_can_be_started_again() -> None:
    one = child("worker 1", SERVES)
    for _ in range(2):
        one.start()
        await one.ready()
        assert one.ready_line == "ready http=http://here"
        one.send(signal.SIGKILL)
        await one.has_ended.wait()
        assert (one.how, one.code) == ("signal 9", -9)
        one.send(signal.SIGKILL)  # to nobody


async def test_what_cannot_start_ends_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    metadata, broken = child("metadata", SERVES), child("worker 1", "raise SystemExit(1)")
    supervisor = Supervisor([metadata, broken], stop_seconds_max=5, is_first_alone=True)
    with pytest.raises(NotStarted, match="worker 1"):
        await supervisor.start(asyncio.Event())
    assert metadata.has_ended.is_set()
    assert "ready" not in capfd.readouterr().out


async def test_one_that_will_not_end_is_made_to() -> None:
    metadata, stubborn = child("metadata", SERVES), child("worker 1", STUBBORN)
    supervisor = Supervisor([metadata, stubborn], stop_seconds_max=0.2, is_first_alone=False)
    await supervisor.start(asyncio.Event())
    assert supervisor.ready_text == "http=http://here"
    assert not await supervisor.drain()
    assert stubborn.code == -signal.SIGKILL
    assert metadata.code == -signal.SIGTERM


async def test_a_stop_before_all_are_ready_ends_the_others() -> None:
    metadata, slow = child("metadata", SERVES), child("worker 1", "import signal; signal.pause()")
    supervisor = Supervisor([metadata, slow], stop_seconds_max=5, is_first_alone=False)
    stop = asyncio.Event()
    starting = asyncio.create_task(supervisor.start(stop))
    await asyncio.wait_for(metadata.ready(), 30)
    while slow.has_ended.is_set():
        await asyncio.sleep(0.01)
    stop.set()
    await starting
    assert supervisor.ready_text == ""
    assert await supervisor.drain()
    assert slow.code == -signal.SIGTERM
