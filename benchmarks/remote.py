"""What it costs to reach a queue by way of another node: ``python -m benchmarks.remote``.

Two processes, each a node with a broker on a folder of its own (fsync never, so that the disk does
not hide the rest), and a real connection between them. Send, receive and delete of a 1 KiB message,
many at a time, are asked of the broker here, of the same behind routing, and of the one elsewhere.
Figures are processor time per call, of the asking and of the answering process apart; from the
latter, what the broker itself takes is to be taken off. The bar is on what a call adds: 40 µs on
each side; it ends with status 1 when it is missed.
"""

import argparse
import asyncio
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from time import process_time
from typing import Final

from penstock.broker.calls import Broker
from penstock.broker.context.context import BrokerContext
from penstock.broker.context.disk import DiskBudget
from penstock.calls.bulkhead import Bulkhead
from penstock.calls.internal.client import InternalClient
from penstock.calls.internal.connection import NodeEnd
from penstock.calls.internal.listener import InternalListener
from penstock.calls.remote.broker import RemoteBroker
from penstock.calls.remote.service import BrokerService
from penstock.calls.routing.leaders import Leaders
from penstock.calls.routing.router import Router
from penstock.log.log import LogConfig
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.topics.catalog import MoveTasks, StoredCatalog
from penstock.model.calls import Ack, Append, Calls, Lease
from penstock.model.message import Claim, Delivery, Message
from penstock.model.ports import LeaseRequest
from penstock.model.topic import Fsync, Kind, Topic
from penstock.telemetry.clock import SystemClock
from penstock.telemetry.metrics import Meter
from penstock.wire.internal.calls import CallHandlers
from penstock.wire.internal.faults import DeadlineExceeded, Unreachable

BODY: Final = b"x" * 1_024
AT_ONCE: Final = 32
ADDED_US_MAX: Final = 40.0
HERE: Final = 1
ELSEWHERE: Final = 2
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def make_topic(name: str) -> Topic:
    return Topic(
        topic_id=(name.encode().hex() * 32)[:32],
        account="000000000000",
        region="us-east-1",
        name=name,
        kind=Kind.STANDARD,
        partition_count=1,
        created_at_ms=0,
        modified_at_ms=0,
        receipt_key=bytes(32),
        fsync=Fsync.NEVER,
    )


LOCAL: Final = make_topic("local")
REMOTE: Final = make_topic("remote")


class Routes:
    """Each of the two queues is led by one of the two nodes, for good."""

    def leader(self, topic: Topic, _partition: int) -> tuple[int, int] | None:
        return (HERE if topic.name == LOCAL.name else ELSEWHERE, 1)

    def leaders(self, topic: Topic) -> Mapping[int, int]:
        return {0: HERE if topic.name == LOCAL.name else ELSEWHERE}

    def nodes(self) -> Sequence[int]:
        return (HERE, ELSEWHERE)

    async def wait_changed(self, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)

    def note_leader(self, place: str, leader: int, epoch: int) -> None:
        raise AssertionError(f"nobody moves: {place} to {leader} in {epoch}")


@asynccontextmanager
async def broker_on(folder: Path, topic: Topic) -> AsyncIterator[tuple[Broker, StoredCatalog]]:
    clock, pool = SystemClock(), ThreadPoolExecutor(2)
    store = await SqliteStore.open(folder / "metadata.sqlite3")
    catalog, tasks = StoredCatalog(store), MoveTasks(store)
    await catalog.start()
    await tasks.start()
    context = BrokerContext(
        folder=folder,
        clock=clock,
        pool=pool,
        disk=DiskBudget(folder, clock, reserve_bytes=1),
        catalog=catalog,
        meter=Meter(),
        log=LogConfig(),
        fsync_interval_ms=1_000,
        clean_interval_ms=3_600_000,
        in_flight_max=120_000,
        grain_ms=0,
        elapsed_since_ms=0,
    )
    broker = Broker(context, tasks, entropy=secrets.token_bytes)
    await broker.start()
    await catalog.create(topic)
    try:
        yield broker, catalog
    finally:
        await broker.stop()
        await tasks.stop()
        await catalog.stop()
        await store.close()
        pool.shutdown()


# ── The other node ───────────────────────────────────────────────────────────────────────────


async def serve() -> None:
    """Says its port, and ends with its input."""
    with tempfile.TemporaryDirectory() as folder:
        async with broker_on(Path(folder), REMOTE) as (broker, catalog):
            answers = CallHandlers()
            service = BrokerService(broker, catalog, node=ELSEWHERE, led=Routes().leader)
            service.register(answers)
            listener = InternalListener(answers, NodeEnd(str(ELSEWHERE), "bench"))
            bound = await listener.start("127.0.0.1", 0)
            print(bound.rpartition(":")[2], flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
            await listener.drain(seconds_max=1.0)
            service.close()


def seconds_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


# ── What is measured ─────────────────────────────────────────────────────────────────────────


async def at_once(count: int, one: Callable[[int], Awaitable[None]]) -> None:
    async def work(first: int) -> None:
        for number in range(first, count, AT_ONCE):
            await one(number)

    await asyncio.gather(*(work(first) for first in range(AT_ONCE)))


class Measured:
    """Processor time per call in µs, here and there."""

    def __init__(self, calls: Calls, topic: Topic, *, other: int, count: int) -> None:
        self._calls = calls
        self._topic = topic
        self._other = other
        self._count = count
        self._deliveries: list[Delivery] = []

    async def run(self) -> dict[str, tuple[float, float]]:
        return {
            "send": await self._time(self._send),
            "receive": await self._time(self._receive),
            "delete": await self._time(self._delete),
        }

    async def _time(self, one: Callable[[int], Awaitable[None]]) -> tuple[float, float]:
        here, there = process_time(), seconds_of(self._other)
        await at_once(self._count, one)
        here, there = process_time() - here, seconds_of(self._other) - there
        return here / self._count * 1e6, there / self._count * 1e6

    async def _send(self, number: int) -> None:
        await self._calls.call(Append(self._topic, 0, [Message(number.to_bytes(16), BODY)]))

    async def _receive(self, _number: int) -> None:
        (delivery,) = await self._calls.call(Lease(self._topic, LeaseRequest()))
        self._deliveries.append(delivery)

    async def _delete(self, _number: int) -> None:
        each = self._deliveries.pop()
        claim = Claim(each.partition, each.record.offset, each.lease_seq)
        await self._calls.call(Ack(self._topic, 0, [claim]))


async def measure(count: int, rounds: int) -> bool:
    other = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.remote",
        "--serve",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert other.stdout is not None
    assert other.stdin is not None
    port = int(await other.stdout.readline())
    client = InternalClient("127.0.0.1", port, NodeEnd(str(HERE), "bench"))
    try:
        with tempfile.TemporaryDirectory() as folder:
            async with broker_on(Path(folder), LOCAL) as (broker, catalog):
                remote = RemoteBroker(
                    lambda: client, moves=broker.moves, find_share=broker.find_share
                )
                bulkhead = Bulkhead(
                    "elsewhere",
                    SystemClock(),
                    deadline_ms=15_000,
                    lost=(Unreachable, DeadlineExceeded),
                )
                routed = Router(
                    Leaders(
                        broker,
                        own_node=HERE,
                        routes=Routes(),
                        remote=lambda _node: remote,
                        bulkhead=lambda _node: bulkhead,
                    ),
                    catalog.find_arn,
                )
                subjects: dict[str, tuple[Calls, Topic]] = {
                    "here": (broker, LOCAL),
                    "routed here": (routed, LOCAL),
                    "routed elsewhere": (routed, REMOTE),
                }
                best: dict[str, dict[str, tuple[float, float]]] = {}
                for _ in range(rounds):
                    for name, (calls, topic) in subjects.items():
                        found = await Measured(calls, topic, other=other.pid, count=count).run()
                        before = best.setdefault(name, found)
                        best[name] = {
                            step: min(before[step], found[step], key=sum) for step in found
                        }
                await routed.close()
                await remote.close()
                return report(best)
    finally:
        await client.close()
        other.stdin.close()
        await other.wait()


def report(best: Mapping[str, Mapping[str, tuple[float, float]]]) -> bool:
    print(f"{'µs of processor per call':<26}{'asking':>10}{'answering':>12}{'added':>10}")
    for name, steps in best.items():
        for step, (here, there) in steps.items():
            alone = best["here"][step][0]
            added = here + there - alone
            print(f"{name + ', ' + step:<26}{here:>10.1f}{there:>12.1f}{added:>10.1f}")
    by_side = [
        max(here, there - best["here"][step][0])
        for step, (here, there) in best["routed elsewhere"].items()
    ]
    print(f"most added on one side: {max(by_side):.1f} µs (at most {ADDED_US_MAX:.0f})")
    return max(by_side) <= ADDED_US_MAX


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=20_000, help="calls of each kind in a round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve())
    elif not asyncio.run(measure(options.count, options.rounds)):
        sys.exit(1)


if __name__ == "__main__":
    main()
