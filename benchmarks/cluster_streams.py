"""The streams and queues of a cluster: beside three brokers of Apache Kafka, and by the number of
nodes. Two parts of ``python -m benchmarks.cluster``.

- **streams**: librdkafka, acks=all and idempotence, 1 KiB records in batches of 64 KiB, to a topic
  of twelve partitions with three copies of which two are needed, on three nodes and on three
  brokers of Apache Kafka; read back by the same client; and end to end at 1,000 records a second.
  Nothing is synced on either side. Systems take turns, each started anew for each round.
- **scale**: single sends to one queue and batches to one topic, on one node, on three that have a
  part each, and on three that have a copy each.

Nodes and load share the machine. So beside each rate stands the processor time that it cost: of
all servers together, and of the busiest, by which they would be limited on machines of their own.
The etcd of our cluster is not counted: it is not asked while messages go through.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, Protocol

import boto3
import botocore.exceptions
import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.harness.cluster import PenstockCluster
from tests.harness.server import Server

from benchmarks import load, proc, scenarios
from benchmarks.apache_cluster import ApacheCluster
from benchmarks.kafka.job import Action, Driver, Job, Result
from benchmarks.kafka.scenarios import PACED_RATE, run_load
from benchmarks.scenarios import LoadFailed
from benchmarks.server import NotAvailable
from benchmarks.workers import EVEN_S_MAX, is_even

NODES: Final = 3
PARTITIONS: Final = 12
BATCH_BYTES: Final = 65_536
BYTES_PER_S_MAX: Final = 128 * 1024**2  # of records; there are three copies of each
WARM_UP_S: Final = 10.0  # a JVM compiles while it runs
CREATED_S_MAX: Final = 30.0
ASK_EVERY_S: Final = 0.1

OURS, THEIRS = "penstock", "Apache Kafka"


class Brokers(Protocol):
    """A cluster that is running."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def pids(self) -> Sequence[int]: ...


class Ours:
    """Implements ``Brokers``."""

    def __init__(self, cluster: PenstockCluster) -> None:
        self.bootstrap = cluster.bootstrap
        self.pids = [node.pid for node in cluster.nodes.values()]


class Found(msgspec.Struct, frozen=True):
    rate: float  # MB of records, or messages, a second
    all_us: float  # of processor time for each KB or message, of all servers
    busiest_us: float  # of the one that had most
    load_share: float  # of a core that the client took


# ── Topics ───────────────────────────────────────────────────────────────────────────────────


def create(bootstrap: str, topic: str, *, copies: int, in_sync_min: int) -> None:
    """Returns once every partition is led and has its copies. Raises LoadFailed."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    config = {"min.insync.replicas": str(in_sync_min)}
    new = NewTopic(topic, PARTITIONS, replication_factor=copies, config=config)
    until = time.monotonic() + CREATED_S_MAX
    try:
        for future in admin.create_topics([new]).values():
            future.result(CREATED_S_MAX)
        while not _is_whole(admin, topic, copies):
            if time.monotonic() > until:
                raise LoadFailed(f"{topic} lacks leaders or copies")
            time.sleep(ASK_EVERY_S)
    except KafkaException as error:
        raise LoadFailed(f"cannot create a topic: {error}") from error


def _is_whole(admin: AdminClient, topic: str, copies: int) -> bool:
    found = admin.list_topics(topic, timeout=CREATED_S_MAX).topics[topic].partitions.values()
    return len(found) == PARTITIONS and all(
        each.leader >= 0 and len(each.isrs) == copies for each in found
    )


def job_of(brokers: Brokers, action: Action, topic: str, seconds: float, **more: object) -> Job:
    host, _, port = brokers.bootstrap.split(",")[0].rpartition(":")
    job = Job(
        driver=Driver.LIBRDKAFKA,
        action=action,
        host=host,
        port=int(port),
        topic=topic,
        partitions=PARTITIONS,
        batch_bytes=BATCH_BYTES,
        warm_up_s=0.0,
        window_s=seconds,
        bytes_max=int(seconds * BYTES_PER_S_MAX),
    )
    return msgspec.structs.replace(job, **more)


def measured(brokers: Brokers, job: Job) -> tuple[Found, Result]:
    """Raises LoadFailed, also when records are missing."""
    before = [proc.cpu_seconds(pid) for pid in brokers.pids]
    result = run_load(job)
    used = [proc.cpu_seconds(pid) - at for pid, at in zip(brokers.pids, before, strict=True)]
    if result.faults:
        raise LoadFailed(result.first_fault)
    # All that the servers did between the two looks, so all records and not those of the window.
    each_us = [seconds * 1e6 / result.records_in_all for seconds in used]
    found = Found(result.mb_per_s, sum(each_us), max(each_us), result.load_cpu_share)
    return found, result


# ── Beside Apache Kafka ──────────────────────────────────────────────────────────────────────


def streams(options: argparse.Namespace, folder: Path) -> None:
    starts: Mapping[str, Callable[[Path], AbstractContextManager[Brokers]]] = {
        OURS: _start_ours,
        THEIRS: ApacheCluster,
    }
    rates: dict[str, dict[str, list[Found]]] = {name: {} for name in starts}
    p99_ms: dict[str, list[float]] = {name: [] for name in starts}
    for number in range(options.rounds):
        for name, start in starts.items():
            try:
                with start(folder / f"streams-{name.split()[0].lower()}-{number}") as brokers:
                    _round(options, brokers, rates[name], p99_ms[name])
            except NotAvailable as reason:
                print(f"streams: {name} is not available: {reason}", flush=True)
            except LoadFailed as problem:
                print(f"streams: a round of {name} failed: {problem}", flush=True)
    _show_streams(rates, p99_ms)


@contextmanager
def _start_ours(folder: Path) -> Iterator[Brokers]:
    with PenstockCluster(folder, nodes=NODES, fsync="never") as cluster:
        wait_even(cluster)
        yield Ours(cluster)


def wait_even(cluster: PenstockCluster) -> None:
    """Until nodes that came later have their part: what moves meanwhile would be measured too.
    Raises LoadFailed."""
    first = next(iter(cluster.nodes.values()))
    admin = int(first.admin_url.rpartition(":")[2])
    until = time.monotonic() + EVEN_S_MAX
    while not is_even(admin, len(cluster.nodes)):
        if time.monotonic() > until:
            raise LoadFailed("partitions are not spread over the nodes")
        time.sleep(ASK_EVERY_S)


def _round(
    options: argparse.Namespace,
    brokers: Brokers,
    rates: dict[str, list[Found]],
    p99_ms: list[float],
) -> None:
    for topic in ("warm", "bench", "paced"):
        create(brokers.bootstrap, topic, copies=NODES, in_sync_min=NODES - 1)
    warm_up_s = min(WARM_UP_S, 2 * options.seconds)
    warm = run_load(job_of(brokers, Action.PRODUCE, "warm", warm_up_s))
    run_load(job_of(brokers, Action.CONSUME, "warm", warm_up_s, records=warm.records_in_all))
    found, produced = measured(brokers, job_of(brokers, Action.PRODUCE, "bench", options.seconds))
    rates.setdefault("produce", []).append(found)
    job = job_of(
        brokers,
        Action.CONSUME,
        "bench",
        10 * options.seconds,
        records=produced.records_in_all,
        bytes_max=0,
    )
    rates.setdefault("consume", []).append(measured(brokers, job)[0])
    paced = job_of(brokers, Action.END_TO_END, "paced", options.seconds, rate=PACED_RATE)
    result = run_load(msgspec.structs.replace(paced, partitions=1, warm_up_s=1.0))
    if result.faults or result.missing or result.latency is None:
        raise LoadFailed(result.first_fault or f"{result.missing} records did not arrive")
    p99_ms.append(result.latency.p99_us / 1_000)


def _show_streams(
    rates: Mapping[str, Mapping[str, Sequence[Found]]], p99_ms: Mapping[str, Sequence[float]]
) -> None:
    for action in ("produce", "consume"):
        middle = {name: _middle(by[action]) for name, by in rates.items() if action in by}
        for name, found in middle.items():
            print(f"{action}, {NODES} copies, {name}: {_figures(found, 'MB/s', 'KB')}")
        if len(middle) == len(rates):
            ours, theirs = middle[OURS], middle[THEIRS]
            print(
                f"{action}, {NODES} copies: {ours.rate / theirs.rate:.2f} x {THEIRS}; for the same"
                f" processor time {theirs.all_us / ours.all_us:.2f} x"
            )
    for name, times in p99_ms.items():
        if times:
            print(
                f"end to end at {PACED_RATE}/s, {NODES} copies, {name}: p99 {median(times):.1f} ms"
            )
    if all(p99_ms.values()):
        ratio = median(p99_ms[THEIRS]) / median(p99_ms[OURS])
        print(f"end to end, {NODES} copies: {ratio:.2f} x {THEIRS} (above 1: we are sooner)")


def _middle(found: Sequence[Found]) -> Found:
    """The round of the middle rate: whole, not a mix of several."""
    return sorted(found, key=lambda each: each.rate)[len(found) // 2]


def _figures(found: Found, unit: str, noun: str) -> str:
    return (
        f"{found.rate:,.0f} {unit} ({found.all_us:.1f} µs of processor for each {noun},"
        f" {found.busiest_us:.1f} of the busiest; the client took {found.load_share:.0%} of a core)"
    )


# ── By the number of nodes ───────────────────────────────────────────────────────────────────


class Size(msgspec.Struct, frozen=True):
    name: str
    nodes: int
    copies: int

    @property
    def in_sync_min(self) -> int:
        return max(1, self.copies - 1)


SIZES: Final = (
    Size("one node", 1, 1),
    Size("three nodes, a part each", 3, 1),
    Size("three nodes, a copy each", 3, 3),
)


def scale(options: argparse.Namespace, folder: Path) -> None:
    sends: dict[str, list[Found]] = {size.name: [] for size in SIZES}
    batches: dict[str, list[Found]] = {size.name: [] for size in SIZES}
    for number in range(options.rounds):
        for at, size in enumerate(SIZES):
            env = {
                "PENSTOCK_CLUSTER__REPLICAS": str(size.copies),
                "PENSTOCK_CLUSTER__IN_SYNC_MIN": str(size.in_sync_min),
                "PENSTOCK_QUEUE__PARTITIONS": str(PARTITIONS),
            }
            place = folder / f"scale-{at}-{number}"
            try:
                with PenstockCluster(place, nodes=size.nodes, fsync="never", env=env) as cluster:
                    wait_even(cluster)
                    sends[size.name].append(_sends(options, cluster))
                    batches[size.name].append(_batches(options, Ours(cluster), size))
            except LoadFailed as problem:
                print(f"scale: a round of {size.name} failed: {problem}", flush=True)
    _show_scale("sends to one queue", "messages/s", "message", sends)
    _show_scale("produce to one topic", "MB/s", "KB", batches)


def _show_scale(what: str, unit: str, noun: str, found: Mapping[str, Sequence[Found]]) -> None:
    middle = {name: _middle(rounds) for name, rounds in found.items() if rounds}
    base = middle.get(SIZES[0].name)
    for name, one in middle.items():
        line = f"{what}, {name}: {_figures(one, unit, noun)}"
        if base is not None:
            line += f"; {one.rate / base.rate:.2f} x one node here,"
            line += f" {base.busiest_us / one.busiest_us:.2f} x by the busiest"
        print(line)


def _batches(options: argparse.Namespace, brokers: Brokers, size: Size) -> Found:
    # Of another name than the queue, which is a topic too.
    create(brokers.bootstrap, "batches", copies=size.copies, in_sync_min=size.in_sync_min)
    return measured(brokers, job_of(brokers, Action.PRODUCE, "batches", options.seconds))[0]


def _sends(options: argparse.Namespace, cluster: PenstockCluster) -> Found:
    """By clients at all nodes at once, as behind a balancer."""
    nodes = list(cluster.nodes.values())
    path = _queue(nodes)
    jobs = [
        load.Job(
            host="127.0.0.1",
            port=node.port,
            queue_url=node.url + path,
            scenario="send",
            connections=max(1, options.connections // len(nodes)),
            warm_up_s=0.0,
            window_s=options.seconds,
        )
        for node in nodes
    ]
    with ThreadPoolExecutor(len(jobs)) as threads:
        warm = [msgspec.structs.replace(job, window_s=1.0) for job in jobs]
        list(threads.map(scenarios.run_load, warm))
        before = [proc.cpu_seconds(node.pid) for node in nodes]
        results = list(threads.map(scenarios.run_load, jobs))
        used = [proc.cpu_seconds(node.pid) - at for node, at in zip(nodes, before, strict=True)]
    for result in results:
        if result.faults:
            raise LoadFailed(result.first_fault)
    count = sum(result.requests for result in results)
    return Found(
        sum(result.messages_per_s for result in results),
        sum(used) * 1e6 / count,
        max(used) * 1e6 / count,
        sum(result.load_cpu_share for result in results),
    )


def _queue(nodes: Sequence[Server]) -> str:
    """The path of a new queue that all of them know. Raises LoadFailed."""
    first = nodes[0].url
    made = str(_client(first).create_queue(QueueName="bench")["QueueUrl"]).removeprefix(first)
    until = time.monotonic() + CREATED_S_MAX
    for node in nodes:
        sqs = _client(node.url)
        while True:
            try:
                sqs.send_message(QueueUrl=node.url + made, MessageBody="first")
                break
            except botocore.exceptions.ClientError as error:
                if time.monotonic() > until:
                    raise LoadFailed(f"a new queue cannot be sent to: {error}") from error
                time.sleep(ASK_EVERY_S)
    return made


def _client(url: str) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="bench",
        aws_secret_access_key="bench",
    )
