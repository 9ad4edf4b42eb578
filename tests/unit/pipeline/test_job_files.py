"""The files of a job: its log, its status, its claim; and what is worth another try."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.net.kafka_client.errors import KafkaRefused, Unreachable
from penstock.pipeline.runs.logs import KEPT_MAX, NAME, JobLog, read_log
from penstock.pipeline.runs.progress import JobProgress, ProgressUpdate, RunCounts
from penstock.pipeline.runs.runner import is_transient, reason_of
from penstock.pipeline.runs.status import (
    Claim,
    JobRunning,
    State,
    Status,
    is_claimed,
    read_status,
    statuses,
    write_status,
)
from penstock.wire.kafka.faults import ErrorCode

# ── Log ──────────────────────────────────────────────────────────────────────────────────────


def over() -> bool:
    return True


def test_what_a_child_prints_and_what_the_runner_says_are_in_one_file(tmp_path: Path) -> None:
    with JobLog(tmp_path) as log:
        log.line("before")
        subprocess.run(["/bin/echo", "child\x1b[2J"], stdout=log.descriptor, check=True)
    lines = list(read_log(tmp_path / NAME, count=10, is_over=over))
    assert lines[0].endswith("INFO penstock: before")
    assert lines[1] == "child\\x1b[2J"  # harmless to the terminal that shows it
    assert len(lines) == 2


def test_a_log_never_grows_beyond_its_bound(tmp_path: Path) -> None:
    with JobLog(tmp_path, bytes_max=10_000) as log:
        for number in range(5_000):
            log.line(f"line {number}")
    files = sorted(tmp_path.iterdir())
    assert len(files) == KEPT_MAX + 1
    assert all(file.stat().st_size < 10_200 for file in files)
    lines = list(read_log(tmp_path / NAME, count=150, is_over=over))
    assert [line.rsplit(" ", 1)[1] for line in lines] == [str(n) for n in range(4_850, 5_000)]


def test_a_follower_gets_every_line_across_a_rotation(tmp_path: Path) -> None:
    ended = threading.Event()
    with JobLog(tmp_path, bytes_max=2_000) as log:
        log.line("0")
        follower = read_log(tmp_path / NAME, count=10, is_over=ended.is_set)
        seen = [next(follower).rsplit(" ", 1)[1]]
        for number in range(1, 60):  # two rotations, read in step
            log.line(str(number))
            seen.append(next(follower).rsplit(" ", 1)[1])
        ended.set()
        assert list(follower) == []
    assert seen == [str(number) for number in range(60)]


def test_a_log_that_cannot_be_written_costs_lines_and_not_the_job(tmp_path: Path) -> None:
    with JobLog(tmp_path, bytes_max=100) as log:
        log.line("x" * 200)
        (tmp_path / NAME).unlink()
        (tmp_path / NAME).mkdir()  # the next roll finds a folder in the way
        (tmp_path / f"{NAME}.1").mkdir()
        (tmp_path / f"{NAME}.1" / "in the way").touch()
        for _ in range(200):  # more than a pipe holds: a blocked one would hang here
            os.write(log.descriptor, b"y" * 1_000 + b"\n")


# ── Status and claim ─────────────────────────────────────────────────────────────────────────


def status(state: State = State.RUNNING) -> Status:
    return Status(
        job="a", state=state, pid=os.getpid(), mode="once", started_at_ms=1, updated_at_ms=2
    )


def test_a_folder_is_claimed_by_one_at_a_time(tmp_path: Path) -> None:
    claim = Claim(tmp_path)
    write_status(tmp_path, status())
    with pytest.raises(JobRunning, match=f"process {os.getpid()} already runs this job on"):
        Claim(tmp_path)
    claim.close()
    Claim(tmp_path).close()


def test_a_job_whose_process_is_gone_is_dead_and_one_that_ended_is_not(tmp_path: Path) -> None:
    claim = Claim(tmp_path)
    write_status(tmp_path, status())
    assert read_status(tmp_path) == status()
    assert is_claimed(tmp_path)
    claim.close()
    found = read_status(tmp_path)
    assert found is not None
    assert found.state is State.DEAD
    write_status(tmp_path, status(State.DONE))
    assert read_status(tmp_path) == status(State.DONE)


def test_looking_at_a_job_never_keeps_it_from_starting(tmp_path: Path) -> None:
    Claim(tmp_path).close()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            is_claimed(tmp_path)

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(50):
            Claim(tmp_path).close()
    finally:
        stop.set()
        looker.join()


def test_a_killed_process_leaves_its_claim(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from penstock.pipeline.runs.status import Claim;"
        "c = Claim(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert is_claimed(tmp_path)
        child.kill()
    assert not is_claimed(tmp_path)


def test_files_that_are_no_status_are_passed_over(tmp_path: Path) -> None:
    for name, text in (("a", "{"), ("b", '{"job": 1}'), ("c", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "status.json").write_text(text)
    (tmp_path / "file").touch()
    assert statuses(tmp_path) == []
    assert statuses(tmp_path / "absent") == []


# ── What is worth another try ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("127.0.0.1:9092", "refused"),
        KafkaRefused(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ConnectionResetError("gone"),
        RuntimeError("x\njava.net.SocketException: Connection reset\nat y"),
        RuntimeError("Python worker exited unexpectedly (crashed)"),
        RuntimeError(
            "Traceback:\npenstock.net.kafka_client.errors.Unreachable: cannot reach a:1: refused"
        ),
        RuntimeError(
            "penstock.net.kafka_client.errors.KafkaRefused: t, 0: moved (NOT_LEADER_OR_FOLLOWER)"
        ),
    ],
)
def test_what_passes_by_itself_is_tried_again(error: Exception) -> None:
    assert is_transient(error)
    around = RuntimeError("around it")
    around.__cause__ = error
    assert is_transient(around)


@pytest.mark.parametrize(
    "error",
    [
        KafkaRefused(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        KafkaRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        RuntimeError("[UNRESOLVED_COLUMN] no such column"),
        RuntimeError(
            "penstock.net.kafka_client.errors.KafkaRefused: t: no (TOPIC_AUTHORIZATION_FAILED)"
        ),
        ValueError("bad"),
    ],
)
def test_what_stays_is_not_tried_again(error: Exception) -> None:
    assert not is_transient(error)


def test_the_reason_is_the_end_of_a_python_traceback() -> None:
    text = (
        "[STREAM_FAILED] Query terminated\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "    g()\n"
        "ValueError: the real reason\n"
    )
    assert reason_of(RuntimeError(text)) == "ValueError: the real reason"
    assert reason_of(RuntimeError("a\nb")) == "a"
    assert reason_of(RuntimeError()) == "RuntimeError"


def test_the_reason_is_without_the_frame_that_spark_puts_around_it() -> None:
    head = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception:"
    text = f"{head} no such file SQLSTATE: XXKST"
    assert reason_of(RuntimeError(text)) == "no such file"
    error = RuntimeError(f"{head} SQLSTATE: XXKST")
    error.__cause__ = RuntimeError("x\nCaused by: java.io.EOFException\n\tat y")
    assert reason_of(error) == "java.io.EOFException"


# ── Progress ─────────────────────────────────────────────────────────────────────────────────


class Notes:
    def __init__(self) -> None:
        self.readings: list[ProgressUpdate] = []

    def show(self, reading: ProgressUpdate) -> None:
        self.readings.append(reading)

    def note(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


def event(batch: int, start: Any, end: Any, latest: Any, rows: int) -> Any:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    def said(offset: Any) -> str | None:
        return None if offset is None else json.dumps(offset)

    return StreamingQueryProgress.fromJson(
        {
            "id": "7d3ce213-83a4-4685-8d3a-000000000001",
            "runId": "7d3ce213-83a4-4685-8d3a-000000000002",
            "name": "q",
            "timestamp": "2026-01-01T00:00:00.000Z",
            "batchId": batch,
            "batchDuration": 1,
            "durationMs": {},
            "eventTime": {},
            "stateOperators": [],
            "sources": [
                {
                    "description": "s",
                    "startOffset": said(start),
                    "endOffset": said(end),
                    "latestOffset": said(latest),
                    "numInputRows": rows,
                    "inputRowsPerSecond": 1.0,
                    "processedRowsPerSecond": 5.0,
                    "metrics": {},
                }
            ],
            "sink": {"description": "k", "numOutputRows": -1, "metrics": {}},
            "observedMetrics": {},
        }
    )


def test_progress_counts_from_where_the_query_began_to_where_the_source_ends() -> None:
    notes, all_counts = Notes(), list[RunCounts]()
    progress = JobProgress(notes, log=lambda _: None, on_counts=all_counts.append)

    def at(a: int, b: int) -> dict[str, Any]:
        return {"v": 1, "topics": {"t": {"0": a, "1": b}}}

    progress.batch_done(event(4, at(10, 10), at(15, 10), at(20, 30), 5))
    progress.batch_done(event(5, at(15, 10), at(20, 30), at(20, 31), 25))
    assert [(r.done, r.total, r.lag) for r in notes.readings] == [(5, 30, 25), (30, 31, 1)]
    assert all_counts[-1].rows == 30
    assert all_counts[-1].last_batch == 5
    assert all_counts[-1].lag == 1


def test_a_source_that_does_not_say_where_it_ends_has_no_total_and_no_lag() -> None:
    notes = Notes()
    progress = JobProgress(notes, log=lambda _: None, on_counts=lambda _: None)
    progress.batch_done(event(0, None, 7, None, 7))
    (reading,) = notes.readings
    assert (reading.done, reading.total, reading.lag) == (7, None, None)
