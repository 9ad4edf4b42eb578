"""The bulkheads around everything that a frontend calls: the metadata service, and each node that
serves partitions. The group and transaction coordinators of a node have separate bulkheads, because
the log of one may hang while the others work. Metrics and the admin API show all bulkheads.

A broker call passes only one bulkhead: that of the metadata service, of the local broker, or of the
other node to which ``routing`` sends the call."""

from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Final

from penstock.calls.bulkhead import Bulkhead
from penstock.flow.breaker import BreakerState
from penstock.model.call_times import BACKEND_DEADLINE_MS, METADATA_DEADLINE_MS
from penstock.model.calls import BrokerCall, BrokerPort, Calls, R
from penstock.model.limits import CONNECTIONS_MAX
from penstock.model.ports import Clock
from penstock.telemetry import families
from penstock.telemetry.families import Family, Sample
from penstock.wire.internal.broker_calls import RULES
from penstock.wire.internal.faults import DeadlineExceeded, Unreachable

METADATA_CALLS_MAX: Final = 500  # changes are rare, and each waits for a disk
# Half of the possible connections, each of which has one call in progress: a node that hangs leaves
# the other half for other nodes.
BACKEND_CALLS_MAX: Final = CONNECTIONS_MAX // 2
COORDINATOR_CALLS_MAX: Final = CONNECTIONS_MAX // 4
_STATES: Final = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
_CONNECTION: Final[dict[str, Any]] = {"lost": (Unreachable,), "late": (DeadlineExceeded,)}


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

    def states(self) -> Sequence[dict[str, str | int]]:
        counts = ("in_use", "calls_max", "parked", "refused_count")
        return [
            {"name": each.name, "state": each.state()}
            | {name: getattr(each, name) for name in counts}
            | {"opened_count": each.breaker.opened_count}
            for each in self._bulkheads.values()
        ]

    def samples(self) -> Iterator[tuple[Family, Sample]]:
        for each in self._bulkheads.values():
            target = (each.name,)
            yield families.BREAKER_STATE, (target, _STATES[each.state()])
            yield families.BULKHEAD_REJECTED, (target, each.refused_count)
            yield families.BULKHEAD_IN_USE, (target, each.in_use)


async def guarded(bulkhead: Bulkhead, broker: Calls, call: BrokerCall[R]) -> R:
    """Make a broker call through a bulkhead. If earlier calls failed, a receive does not wait for
    messages (no long polling)."""
    wait_ms = call.wait_ms
    if wait_ms > 0 and bulkhead.is_suspect(call.topic):
        call, wait_ms = call.at_once(), 0
    if wait_ms <= 0:
        number = bulkhead.enter(call.topic, call.partition)
    else:
        number = bulkhead.park(wait_ms, call.topic, call.partition)
    try:
        reply = await broker.call(call)
    except BaseException as error:
        bulkhead.failed(number, error)
        raise
    bulkhead.left(number)
    return reply


class BrokerWrapper:
    def __init__(self, broker: BrokerPort) -> None:
        self._broker = broker
        self.moves = broker.moves
        self.find_share = broker.find_share
        self.on_advance = broker.on_advance
        self.on_available = broker.on_available


class GuardedBroker(BrokerWrapper):
    def __init__(self, broker: BrokerPort, own: Bulkhead, metadata: Bulkhead) -> None:
        super().__init__(broker)
        self._own = own
        self._metadata = metadata

    def call(self, call: BrokerCall[R]) -> Coroutine[Any, Any, R]:
        bulkhead = self._metadata if RULES[type(call)].needs_metadata else self._own
        return guarded(bulkhead, self._broker, call)
