"""Whoever manages the cluster is killed while it is needed: in the middle of a failover."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.harness.ledger import now_ns
from tests.harness.patience import eventually
from tests.lab.faults import START_SECONDS_MAX, Fault
from tests.lab.kafka_member import QUICK

CREATE_SECONDS_MAX = 120.0
MANY = 1_000  # partitions, with those of the load
MANY_SECONDS_MAX = 5.0  # from the moment the dead are known to the last new leader


class KillManager(Fault):
    """F19: a node that leads is killed, and while others are made leaders, whoever manages is
    killed too. (When one node is both, the next manager is.)"""

    name = "F19 kill manager in a failover"

    def inject(self) -> None:
        rows = self.cluster.rows
        manager = rows.manager
        self._first = first = max(
            (number for number in self.cluster.nodes if number != manager),
            key=lambda number: sum(row.leader == number for row in rows.rows.values()),
        )
        self.victims, self.silent = (f"n{first}", f"n{manager}"), (first, manager or first)
        self.injected_at = now_ns()
        self.cluster.nodes[first].kill()
        self.stage.wait(self._is_failing_over, f"n{first} is taken for dead")
        if manager is not None:
            self.cluster.nodes[manager].kill()
        self.stage.wait(lambda: rows.manager not in (manager, None), "another node manages")
        if rows.manager not in (manager, None):
            self.evidence = f"n{rows.manager} manages after n{manager}"

    def _is_failing_over(self) -> bool:
        return self._first not in self.cluster.rows.nodes

    def heal(self) -> None:
        for node in self.cluster.nodes.values():
            if not node.is_running:
                node.start(seconds=START_SECONDS_MAX)


class KillManagerOfMany(KillManager):
    """F19 as it is meant: there are a thousand partitions, the manager dies when it has begun to
    give new leaders to those of the dead node, and its successor has to be done in five seconds."""

    name = "F19 kill manager in a failover of 1,000 partitions"
    settle_seconds_max = 240.0

    def inject(self) -> None:
        self.injected_at = now_ns()
        self._make_many()
        super().inject()
        rows = self.cluster.rows
        self.stage.wait(self._is_led, "everything is led by somebody alive")
        if not self._is_led():
            self.evidence = ""
            return
        dead_at = max(at for at, _, came in rows.registrations if not came)
        done_at = max((change.at for change in rows.failovers(self.injected_at)), default=dead_at)
        seconds = max(0.0, (done_at - dead_at) / 1e9)
        moved = len({change.partition for change in rows.failovers(self.injected_at)})
        told = f"{moved} of {len(rows.rows)} partitions got other leaders, the last {seconds:.1f} s"
        self.evidence += f"; {told} after both were known to be dead"
        if seconds > MANY_SECONDS_MAX:
            self.found.append(("DARK", f"{told} after the dead were known"))

    def _make_many(self) -> None:
        missing = MANY - len(self.cluster.rows.lasting())
        if missing <= 0:
            return
        bootstrap = ",".join(node.kafka for node in self.cluster.nodes.values())
        admin = AdminClient({**QUICK, "bootstrap.servers": bootstrap})
        made = admin.create_topics(
            [NewTopic("many", missing, 3)], request_timeout=CREATE_SECONDS_MAX
        )
        made["many"].result(CREATE_SECONDS_MAX)
        eventually(self._are_many, seconds=CREATE_SECONDS_MAX, what=f"{MANY} partitions")

    def _are_many(self) -> bool:
        """All have a leader, and enough copies for one node to be spared."""
        rows = self.cluster.rows.lasting()
        return len(rows) >= MANY and all(
            row.leader in self.cluster.rows.nodes and len(row.whole) > row.in_sync_min
            for row in rows
        )

    def _is_failing_over(self) -> bool:
        """In the middle: some have another leader, and some have not."""
        rows = self.cluster.rows
        return bool(rows.took_over_from(self._first, self.injected_at))

    def _is_led(self) -> bool:
        rows = self.cluster.rows
        running = {number for number, node in self.cluster.nodes.items() if node.is_running}
        return all(row.leader in running for row in rows.lasting())
