"""Everybody this frontend calls, each behind a bulkhead of its own: the metadata, every node that
serves partitions, and the coordinators of groups and of transactions there, for a log of one of
these may hang while everything else goes on. What a state means to an operator is here too: for the
metrics and the admin API."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from penstock.frontend.breaker import BreakerState
from penstock.frontend.bulkhead import Bulkhead
from penstock.model.limits import CONNECTIONS_MAX
from penstock.model.ports import Clock
from penstock.telemetry import families
from penstock.telemetry.exposition import Sample
from penstock.telemetry.families import Family
from penstock.wire.internal.faults import DeadlineExceeded, Unreachable

METADATA: Final = "metadata"
# Shorter than the store waits for its file to be free, and than any client waits for an answer.
METADATA_DEADLINE_MS: Final = 4_000
METADATA_CALLS_MAX: Final = 500  # changes are few; each of these waits for a disk
# A disk may stall for seconds and recover. Clients wait for a minute, proxies for half of one.
BACKEND_DEADLINE_MS: Final = 15_000
# Half of the connections there may be, of which each has one call under way: a node that hangs
# leaves the other half to those who ask another.
BACKEND_CALLS_MAX: Final = CONNECTIONS_MAX // 2
# A client has one call under way on each connection, and its coordinators are one of several places
# that it calls.
COORDINATOR_CALLS_MAX: Final = CONNECTIONS_MAX // 4
_STATES: Final = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


class CalleeState(msgspec.Struct, frozen=True):
    name: str
    state: BreakerState
    in_use: int
    calls_max: int
    parked: int
    refused_count: int
    opened_count: int


class Callees:
    def __init__(
        self,
        clock: Clock,
        *,
        backend_calls_max: int = BACKEND_CALLS_MAX,
        backend_deadline_ms: int = BACKEND_DEADLINE_MS,
        coordinator_calls_max: int = COORDINATOR_CALLS_MAX,
        metadata_deadline_ms: int = METADATA_DEADLINE_MS,
        own_account: str | None = None,
    ) -> None:
        """``own_account``: of the node's own tenant; other tenants have a share of the calls."""
        self._own_account = own_account
        self._clock = clock
        self._backend_calls_max = backend_calls_max
        self._backend_deadline_ms = backend_deadline_ms
        self._coordinator_calls_max = coordinator_calls_max
        self.metadata = Bulkhead(
            METADATA,
            clock,
            calls_max=METADATA_CALLS_MAX,
            deadline_ms=metadata_deadline_ms,
            lost=(Unreachable,),
            late=(DeadlineExceeded,),
            own_account=own_account,
        )
        # By node: as many as a cluster has.
        self._backends: dict[str, Bulkhead] = {}
        self._remotes: dict[str, Bulkhead] = {}
        self._groups: dict[str, Bulkhead] = {}
        self._transactions: dict[str, Bulkhead] = {}

    def backend(self, node: str) -> Bulkhead:
        found = self._backends.get(node)
        if found is None:
            found = self._backends[node] = Bulkhead(
                f"backend:{node}",
                self._clock,
                calls_max=self._backend_calls_max,
                deadline_ms=self._backend_deadline_ms,
                own_account=self._own_account,
            )
        return found

    def remote(self, node: str) -> Bulkhead:
        """Another node of the cluster, for what it leads."""
        found = self._remotes.get(node)
        if found is None:
            found = self._remotes[node] = Bulkhead(
                f"remote:{node}",
                self._clock,
                calls_max=self._backend_calls_max,
                deadline_ms=self._backend_deadline_ms,
                own_account=self._own_account,
                lost=(Unreachable,),
                late=(DeadlineExceeded,),
            )
        return found

    def groups(self, node: str) -> Bulkhead:
        return self._coordinator(self._groups, "groups", node)

    def transactions(self, node: str) -> Bulkhead:
        return self._coordinator(self._transactions, "transactions", node)

    def _coordinator(self, known: dict[str, Bulkhead], kind: str, node: str) -> Bulkhead:
        found = known.get(node)
        if found is None:
            # They write to logs as backends do, so they may take as long.
            found = known[node] = Bulkhead(
                f"{kind}:{node}",
                self._clock,
                calls_max=self._coordinator_calls_max,
                deadline_ms=self._backend_deadline_ms,
                own_account=self._own_account,
            )
        return found

    def all(self) -> Sequence[Bulkhead]:
        return (
            self.metadata,
            *self._backends.values(),
            *self._remotes.values(),
            *self._groups.values(),
            *self._transactions.values(),
        )

    def states(self) -> Sequence[CalleeState]:
        return [
            CalleeState(
                name=each.name,
                state=each.state(),
                in_use=each.in_use,
                calls_max=each.calls_max,
                parked=each.parked,
                refused_count=each.refused_count,
                opened_count=each.breaker.opened_count,
            )
            for each in self.all()
        ]

    def samples(self) -> Iterator[tuple[Family, Sample]]:
        """For the meter: what it asks at each scrape."""
        for each in self.all():
            target = (each.name,)
            yield families.BREAKER_STATE, (target, _STATES[each.state()])
            yield families.BULKHEAD_REJECTED, (target, each.refused_count)
            yield families.BULKHEAD_IN_USE, (target, each.in_use)
