"""Broker calls within the bulkhead and the circuit breaker of their callee.

A call takes a place in one bulkhead only: that of this node, of the metadata, or of the other node
that serves it (``routing``).
"""

from collections.abc import Coroutine
from typing import Any

from penstock.calls.bulkhead import Bulkhead
from penstock.model.calls import BrokerCall, BrokerPort, Calls, R
from penstock.wire.internal.broker_calls import RULES


async def guarded(bulkhead: Bulkhead, broker: Calls, call: BrokerCall[R]) -> R:
    """Make a call. If the last call failed, this one does not wait at the broker: it may be the
    probe that decides whether the circuit breaker closes."""
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
    """Everything of a ``BrokerPort`` but its calls, from another one."""

    def __init__(self, broker: BrokerPort) -> None:
        self._broker = broker
        self.moves = broker.moves
        self.find_share = broker.find_share
        self.on_advance = broker.on_advance
        self.on_available = broker.on_available


class GuardedBroker(BrokerWrapper):
    """The broker of this node behind its bulkhead. Calls that wait for the metadata store use the
    bulkhead of the metadata."""

    def __init__(self, broker: BrokerPort, own: Bulkhead, metadata: Bulkhead) -> None:
        super().__init__(broker)
        self._own = own
        self._metadata = metadata

    def call(self, call: BrokerCall[R]) -> Coroutine[Any, Any, R]:
        bulkhead = self._metadata if RULES[type(call)].needs_metadata else self._own
        return guarded(bulkhead, self._broker, call)
