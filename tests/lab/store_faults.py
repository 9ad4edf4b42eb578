"""Faults of the coordination store."""

from __future__ import annotations

import http.client

from tests.harness.ledger import now_ns
from tests.lab.cluster import LEASE_MS, MEMBERS
from tests.lab.faults import Fault


class KillStoreLeader(Fault):
    """F15: the member that leads etcd is killed; it comes back after another one leads."""

    name = "F15 kill etcd leader"

    def inject(self) -> None:
        etcd = self.cluster.etcd
        self._leader = leader = etcd.leader()
        self.victims = (f"e{leader}",)
        self.injected_at = now_ns()
        self._take_away(leader)
        self.stage.wait(self._other_leads, "another member leads")

    def _take_away(self, member: int) -> None:
        self.cluster.etcd.kill(member)

    def _other_leads(self) -> bool:
        try:
            leader = self.cluster.etcd.leader()
        except (AssertionError, KeyError, OSError, http.client.HTTPException):
            return False
        if leader != self._leader:
            self.evidence = f"e{leader} leads after e{self._leader}"
        return leader != self._leader

    def heal(self) -> None:
        self.cluster.etcd.heal()


class StopStoreLeader(KillStoreLeader):
    """F15: it stands still, with its connections open."""

    name = "F15 pause etcd leader"

    def _take_away(self, member: int) -> None:
        self.cluster.etcd.stop(member)


class LoseStoreQuorum(Fault):
    """F15: two of three members are gone for longer than a node's lease: nothing can be elected,
    and what is led is served on."""

    name = "F15 etcd without quorum"

    def inject(self) -> None:
        etcd = self.cluster.etcd
        members = self.stage.chance.sample(range(MEMBERS), 2)
        self.victims = tuple(f"e{member}" for member in members)
        self.injected_at = now_ns()
        for member in members:
            etcd.kill(member)
        changes = len(self.cluster.rows.changes)
        until = self.injected_at + int((LEASE_MS + 4_000) * 1e6)
        self.stage.wait(lambda: now_ns() >= until, "longer than a lease")
        changed = len(self.cluster.rows.changes) - changes
        self.evidence = f"two members away, {changed} rows changed meanwhile"

    def heal(self) -> None:
        self.cluster.etcd.heal()
