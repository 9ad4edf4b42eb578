"""Celery with its SQS transport: a real worker process takes tasks through the server, retries
them, waits for their time, and is killed in the middle of one. All of Celery runs in processes of
its own; see ``celery_app``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.cli.setup.generate import RECIPES

ROOT = Path(__file__).parents[2]
MODULE = "tests.compat.celery_app"
READY_SECONDS_MAX = 60.0
LEASE_SECONDS = 6  # longer than any countdown here: Celery holds those tasks leased

pytestmark = pytest.mark.slow


class Worker:
    """``celery worker`` in a process group of its own, ready when the constructor returns."""

    def __init__(self, env: dict[str, str], module: str = MODULE, concurrency: int = 2) -> None:
        self.lines: deque[str] = deque(maxlen=2_000)
        self._told = threading.Event()
        self._is_ready = False
        self.popen = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", module, "worker"),
                *("--loglevel", "INFO", "--concurrency", str(concurrency), "--pool", "prefork"),
                *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            ],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self.popen.stdout is not None
        self._thread = threading.Thread(target=self._read, args=(self.popen.stdout,), daemon=True)
        self._thread.start()
        self._told.wait(READY_SECONDS_MAX)
        if not self._is_ready:
            self.kill()
            raise AssertionError(f"the worker did not come up\n{self.said()}")

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                self.lines.append(line)
                if " ready." in line:
                    self._is_ready = True
                    self._told.set()
        self._told.set()

    def said(self) -> str:
        return "".join(self.lines)

    def stop(self) -> int:
        """A warm shutdown: tasks under way are finished first."""
        self.popen.send_signal(signal.SIGTERM)
        code = self.popen.wait(timeout=60)
        self._thread.join(timeout=10)
        return code

    def kill(self) -> None:
        """kill -9 for the worker and its children: the group holds nothing else."""
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(timeout=30)
        self._thread.join(timeout=10)


@pytest.fixture
def env(server: Server, tmp_path: Path, queue_name: Callable[..., str]) -> dict[str, str]:
    results = tmp_path / "results"
    results.mkdir()
    return {
        **os.environ,
        "PENSTOCK_PORT": str(server.port),
        "CELERY_RESULTS": str(results),
        "CELERY_LEASE_SECONDS": str(LEASE_SECONDS),
        "CELERY_PREFIX": queue_name("-"),
        "PYTHONWARNINGS": "ignore",
    }


@pytest.fixture
def worker(env: dict[str, str]) -> Iterator[Worker]:
    made = Worker(env)
    yield made
    made.kill()


def ask(env: dict[str, str], name: str, argument: object = "") -> Any:
    """Run one scenario in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", MODULE, name, str(argument)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_tasks_are_run_retried_delayed_and_reported(
    env: dict[str, str], worker: Worker, sqs: Any
) -> None:
    assert ask(env, "add", 20) == [n + n for n in range(20)]
    assert ask(env, "flaky", 2) == 2
    assert ask(env, "countdown", 2) >= 2.0
    assert ask(env, "fail") == ["FAILURE", "as asked"]
    assert worker.stop() == 0, worker.said()

    # acks_late means that nothing is left in flight once everything is done.
    (url,) = sqs.list_queues(QueueNamePrefix=env["CELERY_PREFIX"])["QueueUrls"]
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counts["VisibilityTimeout"] == str(LEASE_SECONDS)
    assert counts["ApproximateNumberOfMessages"] == "0"
    assert counts["ApproximateNumberOfMessagesNotVisible"] == "0"
    sqs.delete_queue(QueueUrl=url)


def test_a_task_survives_its_worker(env: dict[str, str], worker: Worker, sqs: Any) -> None:
    caller = subprocess.Popen(
        [sys.executable, "-m", MODULE, "hold", "marker"],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        marker = Path(env["CELERY_RESULTS"]) / "marker"
        eventually(marker.exists, seconds=30, what="the task begun")
        worker.kill()
        second = Worker(env)
        try:
            stdout, stderr = caller.communicate(timeout=90)
            assert caller.returncode == 0, stderr + second.said()
            assert json.loads(stdout) == "second run"
        finally:
            second.kill()
    finally:
        if caller.poll() is None:
            caller.kill()
            caller.communicate(timeout=10)
    for url in sqs.list_queues(QueueNamePrefix=env["CELERY_PREFIX"]).get("QueueUrls", []):
        sqs.delete_queue(QueueUrl=url)


# The part of an application that the recipe leaves to its reader.
TASKS = """
import sys, time

@app.task(name="double")
def double(x):
    return 2 * x

if __name__ == "__main__":
    began = time.monotonic()
    asked = [double.delay(n) for n in range(100)]
    assert [one.get(timeout=60) for one in asked] == [2 * n for n in range(100)]
    print(time.monotonic() - began)
"""
RECIPE_SECONDS_MAX = 15.0  # with the default polling interval 100 tasks take more than 20 s


def test_the_recipe_runs_a_hundred_tasks_without_sleeping_between_them(
    env: dict[str, str], server: Server, tmp_path: Path, sqs: Any
) -> None:
    recipe = RECIPES["celery"]["text"].replace("127.0.0.1:9324", f"127.0.0.1:{server.port}")
    recipe += f"app.conf.result_backend = 'file://{env['CELERY_RESULTS']}'\n"
    recipe += f"app.conf.task_default_queue = '{env['CELERY_PREFIX']}recipe'\n"
    (tmp_path / "recipe.py").write_text(recipe + TASKS)
    env = {**env, "PYTHONPATH": f"{tmp_path}:{env.get('PYTHONPATH', '')}"}
    worker = Worker(env, module="recipe", concurrency=1)
    try:
        done = subprocess.run(
            [sys.executable, str(tmp_path / "recipe.py")],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        worker.kill()
    assert done.returncode == 0, done.stderr + worker.said()
    assert float(done.stdout) < RECIPE_SECONDS_MAX
    for url in sqs.list_queues(QueueNamePrefix=env["CELERY_PREFIX"]).get("QueueUrls", []):
        sqs.delete_queue(QueueUrl=url)
