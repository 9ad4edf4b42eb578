"""kill -9 in a loop under load, then the books are compared: what ``__usage`` adds up to with what
clients were answered, and ``__audit`` with what they changed.

A killed process loses what it had counted and not yet written, a flush interval's worth and what
was being written; never more, and nothing is ever written twice. Longer runs:
PENSTOCK_FAULTS_KILLS=200."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from tests.compat.kafka.confluent import read_all
from tests.harness.client import Fault, RawClient, Refused, Unanswered
from tests.harness.full import FULL
from tests.harness.patience import eventually
from tests.harness.server import Server, stable_port

from penstock.wire.facts import audit, usage

KILLS = int(os.environ.get("PENSTOCK_FAULTS_KILLS", "6" if FULL else "3"))
FLUSH_MS = 300
# A flush is late by what a busy machine is late, and takes a sync.
LATE_SECONDS_MAX = 10.0
PROGRESS_SECONDS_MAX = 60.0
SEND = "sqs:SendMessage"


class Client:
    """One thread that calls without a pause while the server is up."""

    def __init__(self, port: int, up: threading.Event) -> None:
        self._client = RawClient(port)
        self._up = up
        self._is_ended = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._guard, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._is_ended.set()
        self._up.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "a client hangs"
        if self.error is not None:
            raise self.error

    @property
    def is_calling(self) -> bool:
        return self._client.is_calling

    def _guard(self) -> None:
        try:
            while not self._is_ended.is_set():
                self._up.wait(1.0)
                self.step()
        except BaseException as error:
            self.error = error
        finally:
            self._client.close()

    def step(self) -> None:
        raise AssertionError("a client sends or changes")

    def attempt(self, operation: str, answered: Callable[[float], None], **request: object) -> None:
        """Tell of an answer, and of when it was there; a call without one may or may not count."""
        try:
            self._client.call(operation, request)
        except (Refused, Unanswered):
            return
        except Fault as error:
            if error.is_definite:
                raise
            return
        answered(time.time())


class Run(NamedTuple):
    """One life of the server, by the wall clock, which it shares with us."""

    started_at: float
    ended_at: float

    def has(self, at: float) -> bool:
        return self.started_at <= at <= self.ended_at


class Sender(Client):
    """Messages of one size to one queue; counts what it tried and what it was answered."""

    def __init__(self, port: int, up: threading.Event, name: str, size: int) -> None:
        super().__init__(port, up)
        self.name = name
        self.size = size
        self.tried = 0
        self.answered_at: list[float] = []

    def step(self) -> None:
        self.tried += 1
        self.attempt(
            "SendMessage",
            self.answered_at.append,
            QueueUrl=f"/000000000000/{self.name}",
            MessageBody="x" * self.size,
        )


class Changer(Client):
    """Makes queues, each once."""

    def __init__(self, port: int, up: threading.Event) -> None:
        super().__init__(port, up)
        self.made: dict[str, float] = {}
        self.tried = 0

    def step(self) -> None:
        self.tried += 1
        name = f"made-{self.tried}"

        def answered(at: float) -> None:
            self.made[name] = at

        self.attempt("CreateQueue", answered, QueueName=name)
        self._is_ended.wait(0.02)  # every queue is files on the disk; the senders are the load


@pytest.mark.slow
@pytest.mark.timeout(120 + 30 * KILLS)
def test_the_books_are_right_after_kills_under_load(tmp_path: Path, seed: str) -> None:
    chance = Random(f"usage-kills-{seed}")
    server = Server(
        tmp_path / "data",
        port=stable_port(),
        kafka_port=stable_port(),
        env={"PENSTOCK_USAGE__FLUSH_MS": str(FLUSH_MS)},
    )
    kills: list[Run] = []
    kills_under_load = 0
    with server:
        started_at = time.time()
        up = threading.Event()
        up.set()
        senders = [Sender(server.port, up, f"used-{n}", 10 * n + 1) for n in range(3)]
        changer = Changer(server.port, up)
        maker = RawClient(server.port)
        for sender in senders:
            maker.call("CreateQueue", {"QueueName": sender.name})
        maker.close()
        for client in (*senders, changer):
            client.start()
        for _ in range(KILLS):
            _work(server, senders, chance.randrange(100, 600))
            # Somewhere in a flush interval, or in the write itself; not in the first one, or there
            # would be nothing yet to be written twice.
            time.sleep((2 + chance.random()) * FLUSH_MS / 1_000)
            kills_under_load += any(client.is_calling for client in senders)
            up.clear()
            server.kill()
            kills.append(Run(started_at, time.time()))
            server.start()
            started_at = time.time()
            up.set()
        _work(server, senders, 100)
        for client in (*senders, changer):
            client.end()
        server.restart()  # a stop writes everything
        facts = [usage.decode(value) for value in _read(server, "__usage")]
        notes: list[bytes] = []

        def is_start_noted() -> bool:
            """It is written a moment after the server is ready."""
            notes[:] = _read(server, "__audit")
            return sum(audit.decode(v).action == "penstock:Started" for v in notes) >= KILLS + 2

        eventually(is_start_noted, seconds=30, what="the last start noted")
        assert server.stop() == 0, server.stderr_tail()
        server.assert_no_traceback()
    _judge_usage(facts, senders, kills)
    _judge_audit(notes, changer, kills)
    # Right books count only for a run that was hit while it worked.
    assert kills_under_load >= KILLS - 1


def _read(server: Server, topic: str) -> list[bytes]:
    """Reading is use, too, and told of: a reader that waits for more than a flush has no end."""
    found = read_all(server.kafka, topic, 1, fetch_wait_max_ms=FLUSH_MS // 10)
    return [message.value() for message in found]


def _work(server: Server, senders: list[Sender], count: int) -> None:
    goals = {sender: len(sender.answered_at) + count for sender in senders}
    eventually(
        lambda: all(len(sender.answered_at) >= goal for sender, goal in goals.items()),
        seconds=PROGRESS_SECONDS_MAX,
        what=f"{count} sends of each answered\n{server.stderr_tail(10)}",
    )


def _judge_usage(facts: list[usage.UsageFacts], senders: list[Sender], kills: list[Run]) -> None:
    flushes: dict[str, list[int]] = defaultdict(list)
    for each in facts:
        flushes[each.incarnation].append(each.flush)
    for numbers in flushes.values():
        assert numbers == list(range(1, len(numbers) + 1)), "a flush twice, or missing"
    unwritten = [_unwritten(facts, run) for run in kills]
    rows = [row for each in facts for row in each.columns.rows() if row.op == SEND]
    for sender in senders:
        mine = [row for row in rows if row.resource == sender.name]
        messages = sum(row.messages for row in mine)
        answered = len(sender.answered_at)
        bound = sum(any(stretch.has(at) for stretch in unwritten) for at in sender.answered_at)
        print(
            f"{sender.name}: tried {sender.tried}, answered {answered}, counted {messages},"
            f" lost {answered - messages} of at most {bound}"
        )
        assert messages <= sender.tried, "more was counted than was ever sent"
        assert messages >= answered - bound, "more was lost than was not written at each kill"
        assert bound < answered / 2, "the run was too short to say anything"
        assert sum(row.bytes_in for row in mine) == messages * sender.size
        assert sum(row.requests - row.failed for row in mine) == messages


def _unwritten(facts: list[usage.UsageFacts], run: Run) -> Run:
    """The time before a kill that no flush in the log has told of."""
    told = [each.written_at_ms / 1_000 for each in facts if run.has(each.written_at_ms / 1_000)]
    last = max(told, default=run.started_at)
    late = run.ended_at - last - FLUSH_MS / 1_000
    assert late < LATE_SECONDS_MAX, f"the last flush came {late:.1f} s too late"
    return Run(last, run.ended_at)


def _judge_audit(notes: list[bytes], changer: Changer, kills: list[Run]) -> None:
    assert not list(audit.breaks(notes)), "the chain is broken"
    records = [audit.decode(value) for value in notes]
    assert records[0].seq == 1
    noted = Counter(
        record.resource.rpartition(":")[2]
        for record in records
        if record.action == "sqs:CreateQueue" and record.outcome == "ok"
    )
    assert all(count == 1 for count in noted.values()), "noted twice"
    missing = {name: at for name, at in changer.made.items() if name not in noted}
    noted_at = [at for name, at in changer.made.items() if name in noted]

    def is_explained(at: float) -> bool:
        """Written in order: of what was made before a kill only the end may be missing."""
        run = next((run for run in kills if at <= run.ended_at), None)
        return (
            run is not None
            and run.ended_at - at <= LATE_SECONDS_MAX
            and not any(at < later <= run.ended_at for later in noted_at)
        )

    early = [name for name, at in missing.items() if not is_explained(at)]
    print(f"made {len(changer.made)} queues, {len(missing)} not noted")
    assert not early, "an action long before any kill is missing"
    starts = [record for record in records if record.action == "penstock:Started"]
    stops = [record for record in records if record.action == "penstock:Stopped"]
    assert (len(starts), len(stops)) == (KILLS + 2, 1)
