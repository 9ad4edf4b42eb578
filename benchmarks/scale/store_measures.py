"""What a cluster asks of its store, measured on a real etcd: bytes in its file, the time to read
everything, transactions a second, and what it costs etcd to tell a watch, to answer a pulse and to
keep a lease. etcd's processor time is its own, from ``/proc``."""

import asyncio
import http.client
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from tests.harness.etcd import EtcdCluster

from benchmarks.scale import population
from benchmarks.scale.model import Constants, Size, decisions_per_txn
from penstock.metadata.cluster_entries import PARTITIONS_PREFIX, encode_entry, partition_key
from penstock.metadata.etcd.links import EtcdConfig
from penstock.metadata.etcd.store import EtcdStore

NAMESPACE: Final = "/penstock/penstock"  # as a cluster has it that was given no name
AT_ONCE: Final = 32  # transactions of the manager under way
SWAPS: Final = 2_000
WATCHERS: Final = 16
TOLD: Final = 2_000
KEPT: Final = 2_000
IDLE_SECONDS: Final = 4.0
TICK: Final = os.sysconf("SC_CLK_TCK")


class EtcdFigures(msgspec.Struct, frozen=True):
    """By the names that ``Constants`` has for them."""

    store_overhead_bytes: float
    event_overhead_bytes: float
    list_entry_us: float
    list_entry_store_us: float
    txn_us: float
    txn_store_us: float
    decisions_txn_us: float
    decisions_txn_store_us: float
    txn_per_s: float  # by the clock, whoever else was on the machine
    decisions_txn_per_s: float
    told_us: float
    pulse_us: float
    keep_alive_us: float


class Swapped(msgspec.Struct, frozen=True):
    us: float  # of this process's processor, for one transaction
    store_us: float  # of etcd's
    per_s: float


async def measured(cluster: EtcdCluster, folder: Path, size: Size, c: Constants) -> EtcdFigures:
    config = EtcdConfig(endpoints=cluster.endpoints, namespace=NAMESPACE)
    pid = _pid_of(folder)
    store = await EtcdStore.open(config)
    try:
        before = _file_bytes(cluster)
        await population.fill(store, size)
        grown = _file_bytes(cluster) - before
        entries = size.queues + size.partitions + size.nodes
        plain = size.queues * c.topic_bytes + size.partitions * c.row_bytes
        plain += size.nodes * c.node_bytes
        own, etcds = time.process_time(), _cpu_seconds(pid)
        listed, _ = await store.list(PARTITIONS_PREFIX)
        list_s, list_store_s = time.process_time() - own, _cpu_seconds(pid) - etcds
        assert len(listed) == size.partitions
        told_us, event_bytes = await _told(config, store, pid)
        one = await _swaps(store, pid, rows=1)
        many = await _swaps(store, pid, rows=decisions_per_txn(size.nodes, named=1))
        return EtcdFigures(
            store_overhead_bytes=(grown - plain) / entries,
            event_overhead_bytes=event_bytes,
            list_entry_us=list_s / len(listed) * 1e6,
            list_entry_store_us=list_store_s / len(listed) * 1e6,
            txn_us=one.us,
            txn_store_us=one.store_us,
            decisions_txn_us=many.us,
            decisions_txn_store_us=many.store_us,
            txn_per_s=one.per_s,
            decisions_txn_per_s=many.per_s,
            told_us=told_us,
            pulse_us=await _pulses(config, pid),
            keep_alive_us=await _keep_alives(store, pid),
        )
    finally:
        await store.close()


async def _swaps(store: EtcdStore, pid: int, *, rows: int) -> Swapped:
    """Transactions with so many rows in each, compared and written as the manager does."""
    listed, _ = await store.list(PARTITIONS_PREFIX)
    count = min(SWAPS, max(AT_ONCE, len(listed) // rows))
    parts = [listed[at * rows : (at + 1) * rows] for at in range(count)]
    parts = [part for part in parts if part]
    left = list(reversed(parts))

    async def carry() -> None:
        while left:
            part = left.pop()
            await store.txn(
                compare=[(each.key, each.version) for each in part],
                puts=[(each.key, each.value) for each in part],
            )

    begun, own, etcds = time.perf_counter(), time.process_time(), _cpu_seconds(pid)
    await asyncio.gather(*(carry() for _ in range(AT_ONCE)))
    return Swapped(
        (time.process_time() - own) / len(parts) * 1e6,
        (_cpu_seconds(pid) - etcds) / len(parts) * 1e6,
        len(parts) / (time.perf_counter() - begun),
    )


async def _told(config: EtcdConfig, store: EtcdStore, pid: int) -> tuple[float, float]:
    """etcd's time to tell one watch of one change, beside the time to make the change; and what a
    change has around its key and value on the wire."""
    alone = await _changing(store, pid)
    others = [await EtcdStore.open(config) for _ in range(WATCHERS)]
    heard = [0] * WATCHERS

    async def hear(at: int, revision: int) -> None:
        async for changes in others[at].watch("/told/", from_revision=revision):
            heard[at] += len(changes)
            if heard[at] >= TOLD:
                return

    revision = await store.put("/told/first", b"")
    tasks = [asyncio.create_task(hear(at, revision + 1)) for at in range(WATCHERS)]
    await asyncio.sleep(0.5)  # etcd has no word for "all of these watches are on"
    watched = await _changing(store, pid, waiting=tasks)
    for other in others:
        await other.close()
    key = f"{NAMESPACE}{partition_key(next(population.keys(Size(1, 1))))}"
    # Field tags, lengths, versions and kind of an event, and the namespace before the key.
    overhead = len(NAMESPACE) + len(_varint_fields(key))
    return max(0.0, watched - alone) / (TOLD * WATCHERS) * 1e6, float(overhead)


def _varint_fields(key: str) -> bytes:
    """An event and its entry in Protocol Buffers, without key and value: two tags and lengths
    around, and of key, create revision, mod revision, version and value a tag each, with a length
    or a number of up to five bytes."""
    return bytes(2 * 3 + 2 + 3 * 5 + 3 + (len(key) > 127))


async def _changing(
    store: EtcdStore, pid: int, *, waiting: Sequence[asyncio.Task[None]] = ()
) -> float:
    value = encode_entry(population.row((101, 202, 303), population.FIRST_REVISION))
    keys = population.keys(Size(1, TOLD))
    names = [f"/told{partition_key(key)}" for key in keys]
    before = _cpu_seconds(pid)
    for start in range(0, TOLD, AT_ONCE):
        some = names[start : start + AT_ONCE]
        await store.txn(puts=[(name, value) for name in some])
    if waiting:
        await asyncio.wait(waiting, timeout=60)
    return _cpu_seconds(pid) - before


async def _pulses(config: EtcdConfig, pid: int) -> float:
    """etcd's time for a stream on which nothing happens, for a second."""
    idle = await _idle(pid)
    others = [await EtcdStore.open(config) for _ in range(WATCHERS)]
    streams = [
        asyncio.create_task(_follow(other, f"/quiet/{at}/"))
        for other in others
        for at in range(WATCHERS)
    ]
    await asyncio.sleep(1.0)  # for the streams to be open; the first pulse comes after a second
    busy = await _idle(pid)
    for stream in streams:
        stream.cancel()
    await asyncio.wait(streams)
    for other in others:
        await other.close()
    return max(0.0, busy - idle) / IDLE_SECONDS / len(streams) * 1e6


async def _follow(store: EtcdStore, prefix: str) -> None:
    async for _ in store.watch(prefix, from_revision=1):
        pass


async def _idle(pid: int) -> float:
    before = _cpu_seconds(pid)
    await asyncio.sleep(IDLE_SECONDS)
    return _cpu_seconds(pid) - before


async def _keep_alives(store: EtcdStore, pid: int) -> float:
    leases = [await store.grant(60_000) for _ in range(AT_ONCE)]
    before = _cpu_seconds(pid)
    for _ in range(KEPT // AT_ONCE):
        await asyncio.gather(*(store.keep_alive(lease) for lease in leases))
    used = _cpu_seconds(pid) - before
    for lease in leases:
        await store.revoke(lease)
    return used / (KEPT // AT_ONCE * AT_ONCE) * 1e6


def _pid_of(folder: Path) -> int:
    """Of the member that keeps its data there."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            if f"--data-dir={folder}/m0".encode() in command.split(b"\0"):
                return int(process.name)
    raise AssertionError("the etcd that was started does not run")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _file_bytes(cluster: EtcdCluster) -> int:
    """What is in use of its file."""
    connection = http.client.HTTPConnection(cluster.endpoints[0], timeout=30)
    connection.request("POST", "/v3/maintenance/status", "{}")
    status: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return int(status.get("dbSizeInUse") or status["dbSize"])
