"""``python -m benchmarks.etcd``: the metadata store on etcd against the bare calls it is made of.

The limit is what gRPC's library does for anybody in Python: requests made beforehand, answers left
unread, the same member, the same connection options, in the same process. Both take turns in short
rounds, so that whatever else the machine does falls on both. What is left between them is the price
of encoding, decoding, namespaces, choosing a member and telling errors apart.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import uvloop
from tests.harness.etcd import LACKING, EtcdCluster

from benchmarks import machine
from penstock.metadata.etcd.links import EtcdConfig, Link, Method, aio, open_link
from penstock.metadata.etcd.store import EtcdStore
from penstock.metadata.etcd.wire import encode_range, encode_txn
from penstock.metadata.store import Txn

NAMESPACE = "/bench/store"
CALL_SECONDS = 5.0
IN_FLIGHT = 64
VALUE = bytes(200)  # about a partition's row
LIST_ENTRIES = 20_000
PUTS_PER_TXN = 100

Bare: TypeAlias = "aio.UnaryUnaryMultiCallable[bytes, bytes]"
Turn = Callable[[int], Awaitable[object]]


class Measured:
    """Latencies and cost of one way to do something."""

    def __init__(self) -> None:
        self.latencies_s: list[float] = []
        self.wall_s = self.cpu_s = 0.0

    async def one_by_one(self, turn: Turn, count: int) -> None:
        clock, cpu = time.perf_counter, time.process_time()
        begun = clock()
        for n in range(count):
            start = clock()
            await turn(n)
            self.latencies_s.append(clock() - start)
        self.wall_s += clock() - begun
        self.cpu_s += time.process_time() - cpu

    async def together(self, turn: Turn, count: int) -> None:
        """So many at once, each by a caller that does one after the other."""

        async def caller(number: int) -> None:
            for _ in range(count // IN_FLIGHT):
                start = time.perf_counter()
                await turn(number)
                self.latencies_s.append(time.perf_counter() - start)

        cpu, begun = time.process_time(), time.perf_counter()
        await asyncio.gather(*(caller(number) for number in range(IN_FLIGHT)))
        self.wall_s += time.perf_counter() - begun
        self.cpu_s += time.process_time() - cpu

    def figures(self) -> dict[str, float]:
        count = len(self.latencies_s)
        return {
            "p50_ms": statistics.median(self.latencies_s) * 1e3,
            "p99_ms": statistics.quantiles(self.latencies_s, n=100)[98] * 1e3,
            "per_s": count / self.wall_s,
            "cpu_us": self.cpu_s / count * 1e6,
        }


class Ways:
    """The same thing by the store and by bare calls."""

    def __init__(self, store: EtcdStore, link: Link) -> None:
        self._store = store
        self._range: Bare = link.channel.unary_unary(Method.RANGE.value)
        self._txn: Bare = link.channel.unary_unary(Method.TXN.value)
        self._versions: dict[int, int] = {}
        self._get = encode_range(b"/bench/bare/0")
        self._swaps = [
            # A comparison that holds and stays true, so that the bytes need not be made anew.
            encode_txn(
                Txn((), ((f"/bench/bare/{n}", VALUE),), compare_created=(("/bench/never", 0),)),
                str.encode,
            )
            for n in range(IN_FLIGHT)
        ]

    async def prepare(self) -> None:
        for n in range(IN_FLIGHT):
            self._versions[n] = await self._store.put(f"/{n}", VALUE)
            await self.bare_swap(n)

    async def get(self, _n: int) -> None:
        await self._store.get("/0")

    async def bare_get(self, _n: int) -> None:
        await self._range(self._get, timeout=CALL_SECONDS)

    async def swap(self, n: int) -> None:
        n %= IN_FLIGHT
        self._versions[n] = await self._store.put(f"/{n}", VALUE, if_version=self._versions[n])

    async def bare_swap(self, n: int) -> None:
        await self._txn(self._swaps[n % IN_FLIGHT], timeout=CALL_SECONDS)


async def compared(ways: Ways, *, rounds: int, count: int) -> dict[str, dict[str, float]]:
    turns: dict[str, tuple[Turn, Turn]] = {
        "get": (ways.get, ways.bare_get),
        "swap": (ways.swap, ways.bare_swap),
    }
    measured = {
        f"{name}{how}{bare}": Measured()
        for name in turns
        for how in ("", " together")
        for bare in ("", " bare")
    }
    for _ in range(rounds):
        for name, (ours, bare) in turns.items():
            await measured[name].one_by_one(ours, count)
            await measured[f"{name} bare"].one_by_one(bare, count)
            await measured[f"{name} together"].together(ours, 4 * count)
            await measured[f"{name} together bare"].together(bare, 4 * count)
    return {name: one.figures() for name, one in measured.items()}


async def listed(store: EtcdStore) -> dict[str, float]:
    for start in range(0, LIST_ENTRIES, PUTS_PER_TXN):
        names = range(start, start + PUTS_PER_TXN)
        await store.txn(puts=[(f"/listed/{n}", VALUE) for n in names])
    cpu, begun = time.process_time(), time.perf_counter()
    entries, _ = await store.list("/listed/")
    assert len(entries) == LIST_ENTRIES
    return {
        "wall_us_per_entry": (time.perf_counter() - begun) / LIST_ENTRIES * 1e6,
        "cpu_us_per_entry": (time.process_time() - cpu) / LIST_ENTRIES * 1e6,
    }


async def run(cluster: EtcdCluster, *, rounds: int, count: int) -> dict[str, dict[str, float]]:
    config = EtcdConfig(endpoints=cluster.endpoints, namespace=NAMESPACE)
    # One member for both: the way from a follower to the leader is not what is measured.
    first = cluster.endpoints[cluster.leader()]
    only = EtcdConfig(endpoints=(first,), namespace=NAMESPACE)
    store = await EtcdStore.open(only)
    link = open_link(first, config)
    try:
        ways = Ways(store, link)
        await ways.prepare()
        figures = await compared(ways, rounds=rounds, count=count)
        figures["list"] = await listed(store)
        return figures
    finally:
        await link.channel.close()
        await store.close()


def show(figures: dict[str, dict[str, float]]) -> None:
    titles = ("p50 ms", "bare", "per s", "bare", "ratio", "cpu µs", "bare")
    print(" " * 16 + "".join(f"{title:>9}" for title in titles))
    for name in ("get", "get together", "swap", "swap together"):
        ours, bare = figures[name], figures[f"{name} bare"]
        print(
            f"{name:16}{ours['p50_ms']:9.2f}{bare['p50_ms']:9.2f}{ours['per_s']:9.0f}"
            f"{bare['per_s']:9.0f}{ours['per_s'] / bare['per_s']:9.2f}"
            f"{ours['cpu_us']:9.0f}{bare['cpu_us']:9.0f}"
        )
    one = figures["list"]
    print(
        f"list of {LIST_ENTRIES}: {one['wall_us_per_entry']:.1f} µs an entry,"
        f" {one['cpu_us_per_entry']:.1f} µs of CPU"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--members", type=int, default=3, choices=(1, 3))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=400, help="calls of each kind in a round")
    parser.add_argument("--data", type=Path, default=None, help="a folder on the disk to measure")
    parser.add_argument("--out", type=Path, default=None, help="a file for the figures as JSON")
    options = parser.parse_args()
    if LACKING is not None:
        raise SystemExit(LACKING)
    with tempfile.TemporaryDirectory(dir=options.data) as folder:
        here = machine.describe(Path(folder))
        print(here.title, flush=True)
        with EtcdCluster(Path(folder), members=options.members) as cluster:
            figures = uvloop.run(run(cluster, rounds=options.rounds, count=options.count))
    show(figures)
    if options.out is not None:
        found = {"machine": here.title, "members": options.members, "figures": figures}
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
