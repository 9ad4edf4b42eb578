"""Faults while the cluster's own members change."""

from __future__ import annotations

from tests.harness.ledger import now_ns
from tests.harness.patience import eventually
from tests.lab.faults import START_SECONDS_MAX, Fault

MOVE_SECONDS_MAX = 120.0


class ReplaceNodeDuringKill(Fault):
    """F17: a node joins, another is to be emptied onto it, and while replicas move the leader is
    killed. Afterwards the new node is emptied again and leaves for good."""

    name = "F17 replace a node during a kill"

    def inject(self) -> None:
        cluster = self.cluster
        leader = self.stage.leader()
        self._leader, self._emptied = leader, cluster.followers(leader)[0]
        self._new = cluster.new_number()
        self.victims = (f"n{leader}", f"n{self._emptied}", f"n{self._new}")
        self.silent = (leader,)
        self.injected_at = now_ns()
        cluster.add(self._new)
        cluster.drain(self._emptied)
        self.stage.wait(lambda: self._on(self._new), "replicas begin to move")
        cluster.nodes[leader].kill()
        self.wait_taken_over(leader)

    def _on(self, node: int) -> int:
        return sum(node in row.replicas for row in self.cluster.rows.rows.values())

    def _wait_empty(self, node: int) -> None:
        eventually(
            lambda: not self._on(node), seconds=MOVE_SECONDS_MAX, what=f"nothing is on n{node}"
        )

    def heal(self) -> None:
        cluster = self.cluster
        if not cluster.nodes[self._leader].is_running:
            cluster.nodes[self._leader].start(seconds=START_SECONDS_MAX)
        self._wait_empty(self._emptied)
        moved = self._on(self._new)
        cluster.undrain(self._emptied)
        cluster.drain(self._new)
        self._wait_empty(self._new)
        code = cluster.nodes[self._new].stop()
        assert code == 0, f"exit code {code} of a node that was told to stop"
        cluster.undrain(self._new)
        cluster.forget(self._new)
        if moved and self.evidence:
            self.evidence += f"; {moved} replicas moved to n{self._new} and back"
