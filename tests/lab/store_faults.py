"""Faults of the coordination store."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping

from tests.harness.ledger import now_ns
from tests.harness.server import ServerFailed
from tests.lab.cluster import LEASE_MS, MEMBERS
from tests.lab.etcd_files import EtcdFiles
from tests.lab.faults import START_SECONDS_MAX, Fault
from tests.lab.replicas import last_epoch

from penstock.membership.registration import FILE_NAME as REGISTERED_AT

_HALTED = re.compile(r'"event":"replica halted".*?"partition":"([^"]+)"')


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
        leader = self.cluster.etcd.leader()
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
        if not self._answers():
            self.evidence = f"etcd answered nobody, {changed} rows changed meanwhile"

    def _answers(self) -> bool:
        """Whether the one that is left serves reads that are up to date."""
        try:
            self.cluster.etcd.revision()
        except (AssertionError, KeyError, OSError, http.client.HTTPException):
            return False
        return True

    def heal(self) -> None:
        self.cluster.etcd.heal()


class RestoredStore(Fault):
    """F16: all nodes were stopped, and etcd is what it was some time ago, because somebody restored
    a backup. Nodes remember a later revision and do not start. Then somebody makes them forget it:
    every partition has had another leader since, so every copy knows an epoch that the store has
    never heard of, and all of them have to stop and say so, and answer nobody. In the end the
    operator puts etcd's own data back and starts the nodes again. (Nodes that run meanwhile take
    such an etcd for one that is away: its revisions are older than what they have seen.)"""

    name = "F16 etcd restored from a backup"

    def inject(self) -> None:
        cluster = self.cluster
        self.victims = tuple(cluster.member_names())
        self.silent = tuple(cluster.nodes)
        self._store = EtcdFiles(cluster.etcd, cluster.etcd_folder)
        self.injected_at = now_ns()
        self._store.save()
        epochs = {name: row.epoch for name, row in cluster.rows.rows.items()}
        for number in cluster.nodes:
            self._stop(number)
            self._start(number)
            self.stage.wait(lambda: cluster.is_settled, f"settled after n{number}")
        for number in cluster.nodes:
            self._stop(number)
        self._later = self._copies_beyond(epochs)
        cluster.rows.look_away()
        self._store.restore()
        for number in cluster.nodes:
            self._start_refused(number)
        for number, node in cluster.nodes.items():
            (node.data / REGISTERED_AT).unlink()
            self._start(number)
        self.stage.wait(lambda: not self._running_on(), "copies stop")
        until = now_ns() + int(LEASE_MS * 1e6)
        self.stage.wait(lambda: now_ns() >= until, "longer than a lease")
        copies, left = len(self._later), self._running_on()
        if len(left) < copies:
            self.evidence = f"{copies - len(left)} of {copies} copies with later epochs stopped"
        self.found += [
            ("SPLIT", f"{name} on n{number} does not stop, though its log is of a later epoch")
            for name, number in left
        ]

    def _stop(self, number: int) -> None:
        code = self.cluster.nodes[number].stop()
        assert code == 0, f"exit code {code} of a node that was told to stop"

    def _start(self, number: int) -> None:
        self.cluster.nodes[number].start(seconds=START_SECONDS_MAX)

    def _start_refused(self, number: int) -> None:
        node = self.cluster.nodes[number]
        try:
            node.start(seconds=START_SECONDS_MAX)
        except ServerFailed as refused:
            if "is older than this node" not in str(refused):
                raise
        else:
            self.found.append(("SPLIT", f"n{number} starts on a store that was set back"))
            node.kill()

    def _copies_beyond(self, epochs: Mapping[str, int]) -> list[tuple[str, int]]:
        """Those that hold something of an epoch that the saved store does not know. (A copy of a
        partition nobody has written to since cannot tell, and has nothing to lose.)"""
        rows, nodes = self.cluster.rows.rows, self.cluster.nodes
        return [
            (name, number)
            for name, epoch in sorted(epochs.items())
            if name in rows
            for number in rows[name].replicas
            if last_epoch(nodes[number].data / "topics" / name) > epoch
        ]

    def _running_on(self) -> list[tuple[str, int]]:
        """Copies that ought to stop and have not said that they do."""
        nodes = self.cluster.nodes
        said = {number: set(_HALTED.findall(node.stderr)) for number, node in nodes.items()}
        return [(name, number) for name, number in self._later if name not in said[number]]

    def heal(self) -> None:
        cluster = self.cluster
        for node in cluster.nodes.values():
            if node.is_running:
                node.kill()
        self._store.put_back()
        cluster.rows.look_again()
        for number in cluster.nodes:
            self._start(number)
