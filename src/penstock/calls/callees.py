"""The bulkheads of everything that a frontend calls: the metadata, every node that serves
partitions, and the coordinators of groups and of transactions of each node, because one of their
logs may hang while all others work. Also their states, for the metrics and the admin API."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from penstock.calls.breaker import BreakerState
from penstock.calls.bulkhead import Bulkhead
from penstock.model.call_times import BACKEND_DEADLINE_MS, METADATA_DEADLINE_MS
from penstock.model.limits import CONNECTIONS_MAX
from penstock.model.ports import Clock
from penstock.telemetry import families
from penstock.telemetry.exposition import Sample
from penstock.telemetry.families import Family
from penstock.wire.internal.faults import DeadlineExceeded, Unreachable

METADATA_CALLS_MAX: Final = 500  # changes are few; each of these waits for a disk
# Half of the possible connections, each of which has one call in progress: a node that hangs leaves
# the other half for other nodes.
BACKEND_CALLS_MAX: Final = CONNECTIONS_MAX // 2
COORDINATOR_CALLS_MAX: Final = CONNECTIONS_MAX // 4
_STATES: Final = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
_CONNECTION: Final[dict[str, Any]] = {"lost": (Unreachable,), "late": (DeadlineExceeded,)}


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
        """``own_account``: account of the node's own tenant; every other tenant may use a part of
        each limit."""
        self._clock = clock
        self._own_account = own_account
        self._backend_calls_max = backend_calls_max
        self._backend_deadline_ms = backend_deadline_ms
        self._coordinator_calls_max = coordinator_calls_max
        self._bulkheads: dict[str, Bulkhead] = {}  # by name
        self.metadata = self._bulkhead(
            "metadata", METADATA_CALLS_MAX, deadline_ms=metadata_deadline_ms, **_CONNECTION
        )

    def backend(self, node: str) -> Bulkhead:
        return self._bulkhead(f"backend:{node}", self._backend_calls_max)

    def remote(self, node: str) -> Bulkhead:
        """The bulkhead of another node of the cluster, for the partitions it leads."""
        return self._bulkhead(f"remote:{node}", self._backend_calls_max, **_CONNECTION)

    # Coordinators write to logs as backends do, and have the same deadline.

    def groups(self, node: str) -> Bulkhead:
        return self._bulkhead(f"groups:{node}", self._coordinator_calls_max)

    def transactions(self, node: str) -> Bulkhead:
        return self._bulkhead(f"transactions:{node}", self._coordinator_calls_max)

    def _bulkhead(
        self, name: str, calls_max: int, *, deadline_ms: int | None = None, **errors: Any
    ) -> Bulkhead:
        found = self._bulkheads.get(name)
        if found is None:
            found = self._bulkheads[name] = Bulkhead(
                name,
                self._clock,
                calls_max=calls_max,
                deadline_ms=deadline_ms or self._backend_deadline_ms,
                own_account=self._own_account,
                **errors,
            )
        return found

    def all(self) -> Sequence[Bulkhead]:
        return tuple(self._bulkheads.values())

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
        for each in self.all():
            target = (each.name,)
            yield families.BREAKER_STATE, (target, _STATES[each.state()])
            yield families.BULKHEAD_REJECTED, (target, each.refused_count)
            yield families.BULKHEAD_IN_USE, (target, each.in_use)
