"""The sink under SIGKILL of the whole query: what is there in the end is there once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.harness.patience import eventually
from tests.harness.server import Server
from tests.pipeline.topics import Topics, topics_of

REPO = Path(__file__).parents[2]
SECONDS_MAX = 240.0  # for a session to start and a batch to be done on a busy machine


class Checkpoint:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def batches(self, log: str) -> set[int]:
        """Those that were planned (``offsets``) or done (``commits``)."""
        folder = self.folder / log
        if not folder.is_dir():
            return set()
        return {int(each.name) for each in folder.iterdir() if each.name.isdigit()}

    @property
    def undone(self) -> set[int]:
        return self.batches("offsets") - self.batches("commits")


@contextmanager
def job(topics: Topics, checkpoint: Checkpoint, *how: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.pipeline.sink_job", topics.kafka, "from", "to"]
    process = subprocess.Popen(
        [*command, str(checkpoint.folder), *how],
        cwd=REPO,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def kill_after_a_batch(topics: Topics, checkpoint: Checkpoint, chance: random.Random) -> set[int]:
    """The batches that were under way when everything died."""
    before = max(checkpoint.batches("commits"), default=-1)
    with job(topics, checkpoint) as process:
        eventually(
            lambda: (
                max(checkpoint.batches("commits"), default=-1) > before
                or process.poll() is not None
            ),
            seconds=SECONDS_MAX,
            what="a batch is done",
        )
        assert process.poll() is None, "the query ended by itself"
        threading.Event().wait(chance.random() * 0.6)  # any place within the next batch
    return checkpoint.undone


def run(folder: Path, *, kills: int) -> None:
    chance = random.Random(kills)
    with (
        Server(folder / "data", fsync="never", kafka_port=0) as server,
        topics_of(server.kafka) as topics,
    ):
        topics.make("from", 2)
        topics.make("to", 3)
        checkpoint = Checkpoint(folder / "checkpoint")
        replayed = 0
        for number in range(kills):
            topics.fill("from", {0: 900, 1: 900}, prefix=f"run{number}-")
            replayed += bool(kill_after_a_batch(topics, checkpoint, chance))
        with job(topics, checkpoint, "once") as process:
            assert process.wait(timeout=SECONDS_MAX) == 0
        sent = Counter(topics.values("from"))
        eventually(
            lambda: Counter(topics.values("to")) == sent,
            seconds=30,
            what="every value is there once",
        )
        assert replayed, "no batch was under way at any kill: it proves nothing"
        server.assert_no_traceback()


@pytest.mark.timeout(900)
def test_a_query_that_is_killed_and_started_again_writes_every_row_once(tmp_path: Path) -> None:
    run(tmp_path, kills=2)


@pytest.mark.slow_kills
@pytest.mark.timeout(7_200)
def test_a_query_that_is_killed_twenty_times_writes_every_row_once(tmp_path: Path) -> None:
    run(tmp_path, kills=20)
