"""Calls of the frontends of a node, as ``node/wiring/listeners.py`` joins the parts, on three
nodes: whose compartment a call is in, how deep it is nested, and what a new call needs."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.broker.stage import bodies, message
from tests.unit.calls.routing_kit import Cluster, on_nodes, until
from tests.unit.frontend.memory import MemoryIdentities, MemoryMeter, MemorySubscriptions

from penstock.broker.calls import Broker
from penstock.calls.bulkhead import CalleeRefused, CalleeUnavailable
from penstock.calls.callees import Callees
from penstock.calls.routing.router import Router
from penstock.cursor.tenants import NO_QUOTAS
from penstock.flow.breaker import FAILURES_MAX
from penstock.frontend.aws.context import FrontendConfig
from penstock.frontend.aws.pipeline import Frontend
from penstock.metadata.security.identities import StoredIdentities
from penstock.model.calls import (
    Append,
    BrokerPort,
    CancelMove,
    Ends,
    LeadersCall,
    Lease,
    PartitionCall,
)
from penstock.model.errors import Throttled
from penstock.model.ports import LeaseRequest
from penstock.model.topic import Kind
from penstock.net.http.exchange import HttpRequest
from penstock.node.cluster.cluster_role import ClusterRole
from penstock.node.metadata.metadata_link import MetadataLink
from penstock.node.process.node_setup import NodeSetup
from penstock.node.wiring.broker_role import BrokerRole
from penstock.node.wiring.listeners import FrontendCalls
from penstock.telemetry.clock import SystemClock
from penstock.wire.internal.broker_calls import RULES, Rule

OWN_ACCOUNT = "000000000000"
SOON_S = 10.0  # for what must not wait for a node that hangs
CALLS_MAX = 10  # in the compartment of a node
NESTED_MAX = 8  # coroutines of a forwarded send, from the request to the reply of the other node


class Role:
    """The part of ``ClusterRole`` that frontends need, over the nodes of a test."""

    def __init__(self, cluster: Cluster, own: int) -> None:
        self._cluster = cluster
        self._own = own

    def route(self, broker: Broker, callees: Callees) -> Callable[[BrokerPort], Router]:
        self.anywhere = self._cluster.routed(self._own, callees=callees)
        return lambda local: self._cluster.routed(self._own, callees=callees, local=local)


def calls_of(cluster: Cluster, own: int) -> FrontendCalls:
    catalog = cluster.nodes[own].catalog
    metadata = SimpleNamespace(topics=catalog, catalog=catalog, on_back=lambda _listener: None)
    node = SimpleNamespace(account=OWN_ACCOUNT)
    setup = SimpleNamespace(clock=SystemClock(), name=f"n{own}", config=SimpleNamespace(node=node))
    role = SimpleNamespace(broker=cluster.nodes[own].owned, usage=NO_QUOTAS)
    return FrontendCalls(
        cast(NodeSetup, setup),
        cast(BrokerRole, role),
        cast(MetadataLink, metadata),
        cast(StoredIdentities, DirectoryOfNobody()),
        {},
        lambda _account: 0,
        cast(ClusterRole, Role(cluster, own)),
    )


class DirectoryOfNobody(MemoryIdentities):
    """Takes no changes: nobody asks for any here."""

    def __getattr__(self, name: str) -> Any:
        return None


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    small = partial(Callees, backend_calls_max=CALLS_MAX)
    monkeypatch.setattr("penstock.node.wiring.listeners.Callees", small)
    async with on_nodes(tmp_path, 1, 2, 3) as cluster:
        yield cluster


# ── Compartments ─────────────────────────────────────────────────────────────────────────────


async def test_calls_to_another_node_do_not_occupy_the_compartment_of_this_one(
    cluster: Cluster,
) -> None:
    there = await cluster.topic("there", led_by=(2,))
    quiet = await cluster.topic("quiet", led_by=(2,))
    here = await cluster.topic("here", led_by=(1,))
    calls = calls_of(cluster, 1)
    own, other = calls.callees.backend("n1"), calls.callees.remote("node 2")
    gate = cluster.nodes[2].owned.held["append"] = asyncio.Event()
    hanging = [
        asyncio.create_task(calls.anywhere.call(Append(there, 0, [message(str(n))])))
        for n in range(CALLS_MAX)
    ]
    parked = asyncio.create_task(calls.anywhere.call(Lease(quiet, LeaseRequest(wait_ms=20_000))))
    async with asyncio.timeout(SOON_S):
        await until(lambda: other.in_use == CALLS_MAX and other.parked == 1)
        assert (own.in_use, own.parked) == (0, 0)
        with pytest.raises(Throttled, match="remote:node 2"):
            await calls.anywhere.call(Append(there, 0, [message()]))
        for n in range(2 * CALLS_MAX):
            await calls.anywhere.call(Append(here, 0, [message(str(n))]))
        assert len(await calls.anywhere.call(Lease(here, LeaseRequest(count=10)))) == 10
        assert own.in_use == 0
        gate.set()
        assert len(await asyncio.gather(*hanging)) == CALLS_MAX
        await calls.anywhere.call(Append(quiet, 0, [message("late")]))
        assert bodies(await parked) == ["late"]
    assert (other.in_use, other.parked) == (0, 0)


async def test_calls_to_this_node_are_in_its_compartment_and_no_other(cluster: Cluster) -> None:
    here = await cluster.topic("here", led_by=(1,))
    there = await cluster.topic("there", led_by=(2,))
    calls = calls_of(cluster, 1)
    own = calls.callees.backend("n1")
    gate = cluster.nodes[1].owned.held["append"] = asyncio.Event()
    for broker in (calls.anywhere, calls.broker):  # by way of routing, and as Kafka's clients do
        hanging = [
            asyncio.create_task(broker.call(Append(here, 0, [message(str(n))])))
            for n in range(CALLS_MAX)
        ]
        async with asyncio.timeout(SOON_S):
            await until(lambda: own.in_use == CALLS_MAX)
            with pytest.raises(Throttled, match="backend:n1"):
                await broker.call(Append(here, 0, [message()]))
            await calls.anywhere.call(Append(there, 0, [message()]))
            gate.set()
            assert len(await asyncio.gather(*hanging)) == CALLS_MAX
        gate.clear()
    # The node's own writes are in nobody's compartment: a tenant must not hold them up.
    writing = asyncio.create_task(calls.unlimited.call(Append(here, 0, [message()])))
    await until(lambda: "append" in cluster.nodes[1].owned.done)
    assert own.in_use == 0
    gate.set()
    await writing


async def test_calls_that_wait_for_the_metadata_are_in_its_compartment(cluster: Cluster) -> None:
    calls = calls_of(cluster, 1)
    gate = asyncio.Event()

    async def cancel(_call: CancelMove) -> None:
        await gate.wait()

    cluster.nodes[1].owned.instead[CancelMove] = cancel
    asking = asyncio.create_task(calls.anywhere.call(CancelMove("t")))
    metadata = calls.callees.metadata
    await until(lambda: metadata.in_use == 1)
    assert calls.callees.backend("n1").in_use == 0
    gate.set()
    assert await asking is None
    assert metadata.in_use == 0


async def test_a_failure_of_this_node_is_told_at_once(cluster: Cluster) -> None:
    """Another attempt would meet the same disk: only other nodes are tried again."""
    here = await cluster.topic("here", led_by=(1,))
    calls = calls_of(cluster, 1)
    asked = 0

    async def fail(_call: Ends) -> None:
        nonlocal asked
        asked += 1
        raise OSError(5, "Input/output error")

    cluster.nodes[1].owned.instead[Ends] = fail
    async with asyncio.timeout(SOON_S):
        for number in range(1, FAILURES_MAX + 1):
            with pytest.raises(CalleeUnavailable):
                await calls.anywhere.call(Ends(here, 0))
            assert asked == number
        with pytest.raises(CalleeRefused, match="backend:n1 does not reply for this partition"):
            await calls.anywhere.call(Ends(here, 0))
    assert asked == FAILURES_MAX


# ── Nesting ──────────────────────────────────────────────────────────────────────────────────


def nested(task: "asyncio.Task[Any]") -> list[str]:
    """The coroutines that a task is in, the outermost first."""
    found = []
    at: Any = task.get_coro()
    while hasattr(at, "cr_await"):
        found.append(at.__qualname__)
        at = at.cr_await
    return found


@pytest.mark.parametrize("kind", [Kind.STANDARD, Kind.FIFO])
async def test_a_forwarded_send_is_not_nested_deeply(cluster: Cluster, kind: Kind) -> None:
    name = "q.fifo" if kind is Kind.FIFO else "q"
    await cluster.topic(name, led_by=(2, 2), kind=kind)
    calls = calls_of(cluster, 1)
    frontend = Frontend(
        broker=calls.anywhere,
        everything=calls.catalog,
        subscriptions=MemorySubscriptions(),
        clock=SystemClock(),
        config=FrontendConfig(),
        meter=MemoryMeter(),
        entropy=secrets.token_bytes,
        perf=lambda: 0.0,
        identities=MemoryIdentities(),
    )
    asked = {"QueueUrl": f"http://h/{OWN_ACCOUNT}/{name}", "MessageBody": "m"}
    if kind is Kind.FIFO:
        asked |= {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    headers = {"host": "h", "x-amz-target": "AmazonSQS.SendMessage"}
    body = json.dumps(asked).encode()
    request = HttpRequest("POST", "/", "", headers, body, "127.0.0.1", "request-1")
    gate = cluster.nodes[2].owned.held["append"] = asyncio.Event()
    sending = asyncio.create_task(frontend.handle(request))
    await until(lambda: "append" in cluster.nodes[2].owned.done)
    found = nested(sending)
    assert found[0] == "Frontend.handle"
    assert found[-1] == "_Calling.ask"
    assert len(found) <= NESTED_MAX, found
    gate.set()
    assert (await sending).status == 200


# ── A new call ───────────────────────────────────────────────────────────────────────────────


class Echo(PartitionCall[tuple[int, str]], frozen=True):
    """A call that no version has."""

    text: str
    times: int = 2


class Hold(LeadersCall[int], frozen=True):
    """Counts the partitions of a topic, at every node that leads some."""


async def test_a_new_call_is_one_struct_one_row_and_one_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = cast(dict[Any, Rule], RULES)
    monkeypatch.setitem(rules, Echo, Rule(number=0x02F0, is_idempotent=True))
    monkeypatch.setitem(rules, Hold, Rule(number=0x02F1, is_idempotent=True, join=sum))
    async with on_nodes(tmp_path, 1, 2, 3) as cluster:
        for number, node in cluster.nodes.items():

            async def echo(call: Echo, number: int = number) -> tuple[int, str]:
                return number, call.text * call.times

            async def hold(call: Hold) -> int:
                return len(call.counted_on)

            node.broker.handlers[Echo] = echo
            node.broker.handlers[Hold] = hold
        queue = await cluster.topic(led_by=(1, 2, 3))
        for own in (1, 2, 3):
            calls = calls_of(cluster, own)
            for partition in range(3):
                reply = await calls.anywhere.call(Echo(queue, partition, "ab"))
                assert reply == (partition + 1, "abab")
            assert await calls.broker.call(Echo(queue, own - 1, "x", times=3)) == (own, "xxx")
            assert await calls.anywhere.call(Hold(queue)) == 3
        # It is tried again as its row says: the reply was lost, and the partition has moved.
        calls = calls_of(cluster, 1)
        cluster.nodes[2].owned.held["echo"] = asyncio.Event()
        asking = asyncio.create_task(calls.anywhere.call(Echo(queue, 1, "ab")))
        await until(lambda: "echo" in cluster.nodes[2].owned.done)
        await cluster.nodes[2].vanish()
        cluster.truth.move(queue, 1, 3)
        async with asyncio.timeout(SOON_S):
            assert await asking == (3, "abab")


async def test_a_receive_and_a_look_go_the_same_way(cluster: Cluster) -> None:
    queue = await cluster.topic(led_by=(1, 2, 3))
    for partition in range(3):
        await cluster.put(queue, partition, [message(str(partition))])
    calls = calls_of(cluster, 2)
    found = await calls.anywhere.call(Lease(queue, LeaseRequest(count=10)))
    assert sorted(bodies(found)) == ["0", "1", "2"]
    ends = [await calls.anywhere.call(Ends(queue, partition)) for partition in range(3)]
    assert all(each.high_watermark > 0 for each in ends)
