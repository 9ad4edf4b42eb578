"""Faults of clients: consumers that crash, that come and go, and that stand still. The cluster is
well meanwhile, and has to make up for them: leases run out, groups rebalance."""

from __future__ import annotations

import signal

import msgspec
from tests.harness.ledger import now_ns
from tests.lab.faults import Fault, Stage
from tests.lab.kafka_member import SESSION_MS, MemberWork
from tests.lab.workers import WorkerProcess

STILL_SECONDS = SESSION_MS / 1_000 + 2.0
CREWS = 3  # of SQS consumers, crashed one after the other


class RestlessConsumers(Fault):
    """F20: of three more members of the Kafka group one is killed, one stands still for longer than
    its session and goes on, one leaves as it should: each of that is a rebalance. More SQS
    consumers come, and are killed with messages in their hands."""

    name = "F20 consumers crash, come and go, stand still"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._started: list[WorkerProcess] = []
        self._numbers = 0

    def inject(self) -> None:
        self.victims = ("clients",)
        self.injected_at = now_ns()
        took = [self._crash_consumers(number) for number in range(CREWS)]
        done = [f"{sum(took)} calls of consumers before they crashed"] if all(took) else []
        if self.stage.clients.kafka is not None:
            members = [self._new_member() for _ in range(3)]
            if all(self._is_reading(member) for member in members):
                done.append(self._upset(*members))
        if len(done) == 1 + (self.stage.clients.kafka is not None) and all(done):
            self.evidence = "; ".join(done)

    def _upset(self, crashing: WorkerProcess, still: WorkerProcess, leaving: WorkerProcess) -> str:
        crashing.kill()
        before = still.calls
        still.signal(signal.SIGSTOP)
        leaving.tell_end()
        until = now_ns() + int(STILL_SECONDS * 1e9)
        self.stage.wait(lambda: now_ns() >= until, "longer than a session")
        still.signal(signal.SIGCONT)
        leaving.wait_end()
        self.stage.wait(lambda: still.calls > before, "the one that stood still reads again")
        more = still.calls - before
        return f"{more} records by a member after it had stood still" if more else ""

    def _crash_consumers(self, number: int) -> int:
        """How many of their calls were answered before."""
        work = self.stage.chance.choice(self.stage.clients.sqs)
        folder = self.stage.clients.ledgers / f"crew-{self._name()}"
        folder.mkdir()
        crew = self._start(
            "tests.lab.sqs_worker",
            msgspec.structs.replace(
                work, folder=str(folder), producers=0, consumers=2, crew=f"-{folder.name}"
            ),
            folder.name,
        )
        crew.wait_ready()
        self.stage.wait(lambda: crew.calls >= 5 * (number + 1), "consumers receive")
        crew.kill()
        return crew.calls

    def _new_member(self) -> WorkerProcess:
        assert self.stage.clients.kafka is not None
        work = MemberWork(f"guest-{self._name()}", self.stage.clients.kafka)
        return self._start("tests.lab.kafka_member", work, work.name)

    def _is_reading(self, member: WorkerProcess) -> bool:
        self.stage.wait(lambda: member.calls > 0, "a new member reads")
        return member.calls > 0

    def _name(self) -> str:
        self._numbers += 1
        return f"{self.injected_at // 1_000_000}-{self._numbers}"

    def _start(self, module: str, work: object, name: str) -> WorkerProcess:
        ledgers = self.stage.clients.ledgers
        started = WorkerProcess(module, work, self.cluster.clients, ledgers, name=name)
        self._started.append(started)
        return started

    def heal(self) -> None:
        """Whoever is left leaves as it should."""
        for started in self._started:
            started.signal(signal.SIGCONT)
            started.tell_end()
        for started in self._started:
            if started.is_running:
                started.wait_end()
            started.kill()
