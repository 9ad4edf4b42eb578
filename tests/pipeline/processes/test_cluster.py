"""A cluster of several processes: it comes up, carries a batch and a streaming job, bears the loss
of an executor, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.dataset as pads
import pytest
from tests.harness.server import Server, stable_port

from penstock.pipeline.jobs.cluster import Cluster, ClusterFailed
from penstock.pipeline.lake import Lake

ROOT = Path(__file__).parents[3]
PENSTOCK = Path(sys.executable).with_name("penstock")
RECORDS = 60_000
SHORT = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def wait_for(condition: Callable[[], bool], what: str, *, seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"no {what} in {seconds} s"
        pause.wait(0.05)


def environment() -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    return {**plain, "PYTHONPATH": str(ROOT)}


def job(url: str, lake: Path, name: str, *more: str) -> subprocess.Popen[str]:
    command = [str(PENSTOCK), "pipeline", "run", name, "--lake", str(lake)]
    command += ["--master", url, "--conf", "spark.executor.memory=512m"]
    command += ["--conf", SHORT, "--conf", "spark.sql.shuffle.partitions=2", *more]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment(), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], *, seconds: float = 600) -> str:
    output, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, output
    return output


def children(parent: int) -> list[tuple[int, str]]:
    """Processes below one, with their command lines."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended meanwhile
            continue
        if int(fields[1]) == parent:
            found.append((int(folder.name), command))
    return found


def executors(cluster: Cluster) -> list[int]:
    return [
        pid
        for worker in cluster.worker_pids
        for pid, command in children(worker)
        if "CoarseGrainedExecutorBackend" in command
    ]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, workers=2, cores=1, port=stable_port()) as running:
        yield running
        workers = running.worker_pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def commits(table: Path) -> int:
    """Commits that added something."""
    logs = table.glob("_delta_log/*.json")
    return sum(any('"add"' in line for line in log.read_text().splitlines()) for log in logs)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.faults_only
@pytest.mark.timeout(900)
def test_an_executor_that_is_killed_costs_no_row_and_doubles_none(
    cluster: Cluster, server: Server, tmp_path: Path
) -> None:
    assert cluster.alive_workers() == 2
    plain = environment() | {"PENSTOCK_ENDPOINT": server.url}

    def penstock(*arguments: str, stdin: str = "") -> None:
        subprocess.run([PENSTOCK, *arguments], env=plain, input=stdin, text=True, check=True)

    penstock("topic", "create", "clicks", "--partitions", "2")
    lines = "\n".join(json.dumps({"value": f"record {n} {'x' * 100}"}) for n in range(RECORDS))
    penstock("message", "send", "--topic", "clicks", "--ndjson", stdin=lines)

    archiving = job(
        cluster.url, tmp_path, "archive",
        "--server", server.kafka, "--topics", "clicks", "--batch-bytes", "512k",
    )  # fmt: skip
    try:
        table = tmp_path / "archive" / "clicks"
        wait_for(lambda: commits(table) >= 2 or archiving.poll() is not None, "second commit")
        assert archiving.poll() is None, "it ended before there was anybody to kill"
        before = executors(cluster)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        killed_at = commits(table)
        output = finish(archiving)
    finally:
        if archiving.poll() is None:
            archiving.kill()
            archiving.communicate()
    assert commits(table) > killed_at, f"nothing was left to do after the kill\n{output}"
    rows = pads.dataset(Lake(tmp_path).table("archive/clicks").files(), partitioning="hive")
    values = rows.to_table(columns=["value"]).column("value").to_pylist()
    assert len(values) == RECORDS
    assert len(set(values)) == RECORDS


def test_a_port_that_is_taken_is_said_plainly(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        running = Cluster(tmp_path, workers=1, port=taken.getsockname()[1])
        with pytest.raises(ClusterFailed, match="master exited"):
            running.__enter__()


def a_batch_job_runs_our_code_on_executors(url: str, lake: Path) -> None:
    said = finish(job(url, lake, "tests.pipeline.cluster_probe:JOB", "-o", "json"))
    assert "adding: " in said
    assert " tasks" in said
    assert '"total": 499500' in said
    rows = pads.dataset(Lake(lake).table("probe").files()).to_table().to_pylist()
    assert sorted(row["id"] for row in rows) == list(range(1_000))
    # Not from where it is installed on this machine: from the zip that was sent along.
    assert all(".zip" in row["path"] for row in rows)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    "ending",
    [
        signal.SIGINT,
        pytest.param(signal.SIGKILL, marks=[pytest.mark.faults, pytest.mark.faults_only]),
    ],
)
def test_a_cluster_runs_a_job_and_ends_with_its_command_however_that_ends(
    tmp_path: Path, ending: signal.Signals
) -> None:
    port = stable_port()
    command = [str(PENSTOCK), "pipeline", "cluster", "up", "--lake", str(tmp_path)]
    process = subprocess.Popen(
        [*command, "--workers", "1", "--port", str(port)],
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )

    def parts() -> list[int]:
        """Those that have become what they are to be."""
        return [pid for pid, line in children(process.pid) if "spark.deploy." in line]

    try:
        wait_for(lambda: len(parts()) == 2, "worker")
        pids = parts()
        if ending is signal.SIGINT:
            a_batch_job_runs_our_code_on_executors(f"spark://127.0.0.1:{port}", tmp_path)
        process.send_signal(ending)
        output, _ = process.communicate(timeout=400)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    is_asked = ending is signal.SIGINT
    assert process.returncode == (128 + ending if is_asked else -ending), output
    assert "Traceback" not in output
    if is_asked:
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "end of the others")
