"""The folder and the processes of ``penstock cluster up``, without the cluster."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.cli.conftest import Cli

from penstock.cli.cluster import processes
from penstock.cli.cluster.processes import (
    Folder,
    Process,
    ProcessId,
    StopSignals,
    in_stop_order,
    port_in_use,
    started_at,
    stop_all,
    wait_healthy,
)
from penstock.cli.terminal.failure import ExitCode, Failure

# Says when it hears, so that no test sends a signal too early.
DEAF = "import signal,time;signal.signal(15,signal.SIG_IGN);print('up',flush=True);time.sleep(600)"
OBEDIENT = "import time;print('up',flush=True);time.sleep(600)"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(tmp_path / "c")
    folder.lock()
    return folder


class TestFolder:
    def test_keeps_ports_name_and_key(self, folder: Folder) -> None:
        first = folder.prepare(nodes=None, base=21_000, etcd=None)
        assert (first.nodes, first.ports(1).http, first.ports(3).internal) == (3, 21_000, 21_023)
        key = folder.master_file.read_bytes()
        assert stat.S_IMODE(folder.master_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        again = Folder(folder.path)
        assert again.prepare(nodes=None, base=None, etcd=None) == first
        assert folder.master_file.read_bytes() == key

    def test_takes_more_nodes_and_leaves_the_others_where_they_are(self, folder: Folder) -> None:
        three = folder.prepare(nodes=3, base=21_000, etcd=None)
        four = folder.prepare(nodes=4, base=None, etcd=None)
        assert [four.ports(n) for n in (1, 2, 3)] == [three.ports(n) for n in (1, 2, 3)]
        ports = four.all_ports(nodes=range(1, 5), with_etcd=True)
        assert len(ports) == len(set(ports)) == 18

    @pytest.mark.parametrize(
        "asked",
        [
            {"nodes": 2, "base": None, "etcd": None},
            {"nodes": None, "base": 22_000, "etcd": None},
            {"nodes": None, "base": None, "etcd": "127.0.0.1:2379"},
        ],
    )
    def test_is_not_made_into_another_cluster(
        self, folder: Folder, asked: dict[str, int | None]
    ) -> None:
        folder.prepare(nodes=3, base=21_000, etcd=None)
        with pytest.raises(Failure) as refused:
            folder.prepare(**asked)  # type: ignore[arg-type]
        assert refused.value.exit_code is ExitCode.CONFLICT
        assert folder.layout().nodes == 3

    def test_takes_the_next_ports_when_the_usual_ones_are_taken(self, folder: Folder) -> None:
        layout = folder.prepare(nodes=3, base=None, etcd=None)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", layout.ports(2).kafka))
            other.listen()
            assert (
                port_in_use(layout.all_ports(nodes=(1, 2), with_etcd=False))
                == layout.ports(2).kafka
            )
            beside = Folder(folder.path.with_name("d"))
            beside.lock()
            assert beside.prepare(nodes=3, base=None, etcd=None).base > layout.base

    def test_that_was_tampered_with_is_refused_in_words(self, folder: Folder) -> None:
        folder.prepare(nodes=3, base=21_000, etcd=None)
        for text in ("", "[]", "{}", '{"name": 1, "base": "x", "nodes": 3, "etcd": ""}'):
            (folder.path / "cluster.json").write_text(text)
            with pytest.raises(Failure, match="cannot be read"):
                folder.layout()

    def test_is_started_by_one_command_at_a_time(self, folder: Folder) -> None:
        with pytest.raises(Failure, match="is already running"):
            Folder(folder.path).lock()

    def test_knows_its_processes_from_others_with_the_same_number(self, folder: Folder) -> None:
        folder.prepare(nodes=3, base=21_000, etcd=None)
        pid = os.getpid()
        at = started_at(pid)
        assert at is not None
        folder.record(
            [ProcessId("n1", pid, at), ProcessId("n2", pid, at - 1), ProcessId("n3", 2**22 + 1, at)]
        )
        assert [one.name for one in folder.running()] == ["n1"]
        file = folder.path / "running.json"
        kept = json.loads(file.read_text())
        file.write_text(json.dumps({**kept, "boot": "another"}))
        assert not folder.running()


class TestProcesses:
    @pytest.fixture
    def signals(self) -> Iterator[StopSignals]:
        with StopSignals() as signals:
            yield signals

    @staticmethod
    def run(name: str, text: str, log: Path, *, detach: bool = True) -> Process:
        process = Process.start(
            name, [sys.executable, "-c", text], env=os.environ, log=log, detach=detach
        )
        while not log.exists() or "up" not in log.read_text():
            assert not processes.wait_readable([process.fd], seconds=0.01), "it has ended"
        return process

    def test_end_one_by_one_the_etcd_last(self, tmp_path: Path, signals: StopSignals) -> None:
        ours = [self.run(name, OBEDIENT, tmp_path / name) for name in ("etcd", "n1", "n2")]
        lines = list(stop_all(in_stop_order(ours), signals))
        assert lines == ["n1 has stopped", "n2 has stopped", "etcd has stopped"]
        assert not any(one.id.is_alive for one in ours)

    def test_that_do_not_end_are_made_to(
        self, tmp_path: Path, signals: StopSignals, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(processes, "STOP_SECONDS_MAX", 0.2)
        deaf = self.run("n1", DEAF, tmp_path / "n1")
        assert list(stop_all([deaf], signals)) == ["killing n1", "n1 has stopped"]

    def test_are_ended_at_once_when_that_is_said_again(
        self, tmp_path: Path, signals: StopSignals
    ) -> None:
        ours = [self.run(name, DEAF, tmp_path / name) for name in ("n1", "n2")]
        ending = stop_all(ours, signals)
        os.kill(os.getpid(), signal.SIGINT)
        assert list(ending) == ["killing n1", "n1 has stopped", "n2 has stopped"]

    def test_that_ends_instead_of_getting_ready_leaves_its_last_words(
        self, tmp_path: Path, signals: StopSignals
    ) -> None:
        log = tmp_path / "log"
        command = [sys.executable, "-c", "print('no such disk')"]
        process = Process.start("n1", command, env=os.environ, log=log, detach=True)
        with pytest.raises(Failure, match="n1 did not start") as failed:
            wait_healthy(process, 1, "/readyz", log=log, seconds=10, signals=signals)
        assert failed.value.why == "no such disk"
        process.ended()

    def test_that_says_why_it_did_not_start_is_quoted(
        self, tmp_path: Path, signals: StopSignals
    ) -> None:
        log = tmp_path / "log"
        said = "error: port 9 is in use\\n  why: process 7 listens there\\n   do: stop it"
        command = [sys.executable, "-c", f"print('earlier'); print('{said}')"]
        process = Process.start("n1", command, env=os.environ, log=log, detach=True)
        with pytest.raises(Failure) as failed:
            wait_healthy(process, 1, "/readyz", log=log, seconds=10, signals=signals)
        assert failed.value.what == "n1 did not start: port 9 is in use"
        assert failed.value.why == "process 7 listens there"
        assert failed.value.fix == f"stop it; log file: {log}"
        process.ended()

    def test_of_a_command_in_the_foreground_end_with_it(self, tmp_path: Path) -> None:
        """Even if it is killed."""
        text = (
            "import os,sys,time\nfrom pathlib import Path\n"
            "from penstock.cli.cluster.processes import Process\n"
            f"one = Process.start('n1', [sys.executable, '-c', {OBEDIENT!r}], env=os.environ,"
            f" log=Path({str(tmp_path / 'log')!r}), detach=False)\n"
            "print(one.id.pid, one.id.started, flush=True)\ntime.sleep(600)"
        )
        with subprocess.Popen(
            [sys.executable, "-c", text], stdout=subprocess.PIPE, text=True
        ) as parent:
            assert parent.stdout is not None
            pid, at = map(int, parent.stdout.readline().split())
            child = Process(ProcessId("n1", pid, at))
            parent.kill()
            assert processes.wait_readable([child.fd], seconds=10)
        os.close(child.fd)


class TestCommands:
    def test_say_what_to_install(
        self, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        done = cli("cluster", "up", "--data", str(tmp_path / "c"))
        assert done.code == ExitCode.NOT_FOUND
        assert "etcd is not installed" in done.err
        assert "etcd-server" in done.err
        assert not (tmp_path / "c").exists()

    def test_say_how_to_install_grpcio_before_anything_starts(
        self, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "grpc", None)
        monkeypatch.setenv("PATH", str(tmp_path))  # without an etcd nothing is ever started here
        done = cli("cluster", "up", "--data", str(tmp_path / "c"))
        assert done.code == ExitCode.NOT_FOUND
        assert f"do: run `{sys.executable} -m pip install 'penstock[cluster]'`" in done.err
        assert not (tmp_path / "c").exists()

    def test_down_wants_a_cluster_and_minds_none_that_runs(self, cli: Cli, tmp_path: Path) -> None:
        assert cli("cluster", "down", "--data", str(tmp_path)).code == ExitCode.NOT_FOUND
        folder = Folder(tmp_path / "c")
        folder.lock()
        folder.prepare(nodes=3, base=21_000, etcd=None)
        done = cli("cluster", "down", "--data", str(tmp_path / "c"))
        assert (done.code, done.json["stopped"]) == (0, [])

    def test_up_names_the_port_that_is_taken(self, cli: Cli, tmp_path: Path) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            done = cli(
                "cluster", "up", "--data", str(tmp_path / "c"), "--port-base", str(port),
                "--etcd", "127.0.0.1:1",
            )  # fmt: skip
        assert done.code == ExitCode.CONFLICT
        assert f"port {port} is in use" in done.err
