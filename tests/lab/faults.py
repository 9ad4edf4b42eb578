"""What can be done to a cluster, and how it is undone. Every fault says afterwards what it has seen
of its own effect (``fired``): a fault that did nothing makes a run worthless, and the run says so.

This module has what faults have in common and those of processes; ``link_faults``, ``disk_faults``,
``store_faults``, ``clock_faults``, ``member_faults`` and ``client_faults`` have the others."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.harness.ledger import now_ns
from tests.harness.patience import eventually
from tests.lab.cluster import LEASE_MS, LabCluster
from tests.lab.kafka_member import KafkaWork
from tests.lab.network import Namespaces
from tests.lab.sqs_worker import SqsWork

EFFECT_SECONDS_MAX = 30.0  # a lease, the manager's look, and a machine that is busy
START_SECONDS_MAX = 60.0


@dataclass
class Clients:
    """The load, for faults of clients: more of the same are started, and broken."""

    ledgers: Path
    sqs: list[SqsWork] = field(default_factory=list)
    kafka: KafkaWork | None = None


@dataclass
class Stage:
    """What a fault works on."""

    cluster: LabCluster
    chance: Random
    clients: Clients
    working: Callable[[], None] = field(default=lambda: None)  # raises when the load is gone

    @property
    def net(self) -> Namespaces:
        assert isinstance(self.cluster.net, Namespaces), self.cluster.net.lacking
        return self.cluster.net

    def leader(self) -> int:
        """One of those that lead much."""
        return self.chance.choice(self.cluster.leaders())

    def wait(self, probe: Callable[[], object], what: str) -> None:
        """For an effect. That it did not come is not an error here: ``fired`` says so."""

        def checked() -> bool:
            self.working()
            return bool(probe())

        try:
            eventually(checked, seconds=EFFECT_SECONDS_MAX, what=what)
        except AssertionError as error:
            if "not within" not in str(error):
                raise


class Fault:
    """One time that something is done. ``inject``, then ``heal``, then ``fired``."""

    name = ""
    needs_net = False
    needs_disks = False
    needs_faketime = False
    is_single_kill = False  # of which the time without writes is bounded (DARK)
    is_clock_wrong = False  # of a node, as long as it lasts
    settle_seconds_max = 90.0  # for everybody to be in sync again afterwards

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.cluster = stage.cluster
        self.victims: tuple[str, ...] = ()
        self.silent: tuple[int, ...] = ()  # nodes that could not answer anybody meanwhile
        self.injected_at = 0
        self.healed_at = 0
        self.evidence = ""
        self.found: list[tuple[str, str]] = []  # what it has seen broken: invariant, why

    def inject(self) -> None:
        """Do it, and wait for the effect."""
        raise AssertionError(f"{self.name} does not say what it does")

    def heal(self) -> None:
        """Undo it. The cluster may still be catching up."""

    def fired(self) -> str | None:
        """What shows that it happened; None when nothing does."""
        return self.evidence or None

    def wait_taken_over(self, node: int) -> None:
        """Until others lead what a node led."""

        def moved() -> bool:
            return bool(self.cluster.rows.took_over_from(node, self.injected_at)) and not any(
                row.leader == node for row in self.cluster.rows.rows.values()
            )

        self.stage.wait(moved, f"others lead what n{node} led")
        taken = len(self.cluster.rows.took_over_from(node, self.injected_at))
        if taken:
            self.evidence = f"{taken} partitions of n{node} led by others"


class KillLeader(Fault):
    """F1: the node that leads the most is gone without a word, and comes back after others lead."""

    name = "F1 kill leader"
    is_single_kill = True

    def inject(self) -> None:
        leader = self.stage.leader()
        self.victims, self.silent = (f"n{leader}",), (leader,)
        self._leader = leader
        self.injected_at = now_ns()
        self.cluster.nodes[leader].kill()
        self.wait_taken_over(leader)

    def heal(self) -> None:
        self.cluster.nodes[self._leader].start(seconds=START_SECONDS_MAX)


class KillAll(Fault):
    """F2: all nodes at once."""

    name = "F2 kill all"

    def inject(self) -> None:
        nodes = self.cluster.nodes
        self.victims, self.silent = tuple(f"n{number}" for number in nodes), tuple(nodes)
        self.injected_at = now_ns()
        for node in nodes.values():
            os.kill(node.pid, signal.SIGKILL)
        for node in nodes.values():
            node.kill()
        self.evidence = "all nodes ended" if not any(n.is_running for n in nodes.values()) else ""

    def heal(self) -> None:
        for node in self.cluster.nodes.values():
            node.start(seconds=START_SECONDS_MAX)


class StopLeader(Fault):
    """F4: the leader stands still for longer than its lease and goes on as if nothing had been,
    with answers half written."""

    name = "F4 pause leader"

    def inject(self) -> None:
        self._leader = leader = self.stage.leader()
        self.victims, self.silent = (f"n{leader}",), (leader,)
        self.injected_at = now_ns()
        pid = self.cluster.nodes[leader].pid
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        self.wait_taken_over(leader)
        until = self.injected_at + (LEASE_MS + 1_000) * 1_000_000
        self.stage.wait(lambda: now_ns() >= until, "longer than a lease")

    def heal(self) -> None:
        self.cluster.nodes[self._leader].thaw()


class RollingRestart(Fault):
    """F18: each node is told to stop and started again, one after the other."""

    name = "F18 rolling restart"

    def inject(self) -> None:
        self.victims = tuple(f"n{number}" for number in self.cluster.nodes)
        self.injected_at = now_ns()
        codes = []
        for number, node in self.cluster.nodes.items():
            codes.append(node.stop())
            node.start(seconds=START_SECONDS_MAX)
            self.stage.wait(lambda: self.cluster.is_settled, f"settled after n{number}")
        if any(codes):
            raise AssertionError(f"exit codes {codes} of nodes that were told to stop")
        self.evidence = f"exit codes {codes}"
