"""A cluster beside a node by itself: ``python -m benchmarks.cluster [--rounds N] [--only NAMES]``.

- **send**: messages a second to one queue, fsync always and never, on one node and on three nodes
  of one machine that all hold it (and share its cores and its disk); sent to the leader, and to
  another node that passes them on. The ratio to the single node is what copies cost here.
- **kill**: how long nobody is answered after the leader is killed, by a client that sends all the
  time by way of the others.
- **many**: how long until the last of a thousand partitions that a killed node led is led again.
- **streams** and **scale**: beside three brokers of Apache Kafka, and from one node to three, in
  ``cluster_streams.py``.

Servers and load share the machine; rounds alternate, figures are medians.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import boto3
import botocore.config
from tests.harness.cluster import PenstockCluster
from tests.harness.server import Server

from benchmarks import cluster_streams
from benchmarks.load import Job
from benchmarks.machine import describe
from benchmarks.scenarios import run_load

PARTITIONS = 1_000
REPLICAS = 3
TOPICS = 10
BACK_SECONDS_MAX = 60.0


def client(url: str) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="bench",
        aws_secret_access_key="bench",
        config=botocore.config.Config(
            retries={"total_max_attempts": 1}, read_timeout=20, connect_timeout=2
        ),
    )


def made(url: str, name: str) -> str:
    until = time.monotonic() + 30
    while True:
        try:
            answer = client(url).create_queue(QueueName=name)
            client(url).send_message(QueueUrl=answer["QueueUrl"], MessageBody="first")
            return str(answer["QueueUrl"]).removeprefix(url)
        except Exception:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def rate(server: Server, path: str, *, seconds: float, connections: int) -> float:
    result = run_load(
        Job(
            host="127.0.0.1",
            port=server.port,
            queue_url=server.url + path,
            scenario="send",
            connections=connections,
            window_s=seconds,
            server_pid=server.pid,
        )
    )
    assert not result.faults, result.first_fault
    return result.messages_per_s


class Etcd:
    """Looked at from outside, as an operator would."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def values(self, prefix: str) -> list[Any]:
        command = ["etcdctl", "--endpoints", self._endpoint, "get", "--prefix"]
        found = subprocess.run(
            [*command, f"/penstock/penstock{prefix}", "--print-value-only"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return [json.loads(line) for line in found.splitlines() if line]

    def leader_of(self, name: str) -> int:
        topic = next(one for one in self.values("/topics/") if one["name"] == name)
        return int(self.values(f"/partitions/{topic['topic_id']}/0")[0]["leader"])


def sends(options: argparse.Namespace, folder: Path) -> None:
    for fsync in ("always", "never"):
        found: dict[str, list[float]] = {"one node": [], "leader": [], "another node": []}
        with (
            Server(folder / f"one-{fsync}", fsync=fsync, kafka_port=0) as one,
            PenstockCluster(folder / f"three-{fsync}", fsync=fsync) as cluster,
        ):
            alone = made(one.url, "bench")
            path = made(cluster.nodes[1].url, "bench")
            leader = Etcd(cluster.etcd.endpoints[0]).leader_of("bench")
            other = next(number for number in cluster.nodes if number != leader)
            for _ in range(options.rounds):
                more = {"seconds": options.seconds, "connections": options.connections}
                found["one node"].append(rate(one, alone, **more))
                found["leader"].append(rate(cluster.nodes[leader], path, **more))
                found["another node"].append(rate(cluster.nodes[other], path, **more))
        base = median(found["one node"])
        for name, rates in found.items():
            rates_text = ", ".join(f"{each:,.0f}" for each in rates)
            print(
                f"send, fsync {fsync}, {name}: {median(rates):,.0f}/s"
                f" ({median(rates) / base:.2f} of one node; rounds {rates_text})"
            )


def kills(options: argparse.Namespace, folder: Path) -> None:
    gaps = []
    with PenstockCluster(folder / "kills") as cluster:
        path = made(cluster.nodes[1].url, "bench")
        etcd = Etcd(cluster.etcd.endpoints[0])
        for _ in range(options.rounds):
            leader = etcd.leader_of("bench")
            other = next(node for number, node in cluster.nodes.items() if number != leader)
            sqs = client(other.url)
            sqs.send_message(QueueUrl=other.url + path, MessageBody="before")
            cluster.nodes[leader].kill()
            began = time.monotonic()
            while True:
                try:
                    sqs.send_message(QueueUrl=other.url + path, MessageBody="after")
                    break
                except Exception:
                    assert time.monotonic() - began < BACK_SECONDS_MAX
            gaps.append(time.monotonic() - began)
            cluster.nodes[leader].start()
    print(
        f"writes back after a kill: median {median(gaps):.1f} s, longest {max(gaps):.1f} s"
        f" of {len(gaps)} (bar 10 s; a node's lease is 6 s)"
    )


def _are_whole(rows: Sequence[Any], count: int) -> bool:
    """Also those that were made by the first node alone, before there were others."""
    return len(rows) > count and all(len(row["in_sync"]) == REPLICAS for row in rows)


def many(options: argparse.Namespace, folder: Path) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    with PenstockCluster(folder / "many") as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        each = options.partitions // TOPICS
        wanted = [NewTopic(f"many-{n}", each, replication_factor=REPLICAS) for n in range(TOPICS)]
        for future in admin.create_topics(wanted).values():
            future.result(timeout=60)
        etcd = Etcd(cluster.etcd.endpoints[0])
        until = time.monotonic() + 120
        while not _are_whole(etcd.values("/partitions/"), options.partitions):
            assert time.monotonic() < until, "the partitions are not on three nodes"
            time.sleep(0.5)
        victim = 1
        led = sum(row["leader"] == victim for row in etcd.values("/partitions/"))
        cluster.nodes[victim].kill()
        killed = time.monotonic()
        while any(str(node["node"]) == "1" for node in etcd.values("/nodes/")):
            time.sleep(0.05)
        gone = time.monotonic()
        while any(row["leader"] == victim for row in etcd.values("/partitions/")):
            assert time.monotonic() - gone < BACK_SECONDS_MAX
            time.sleep(0.05)
        elected = time.monotonic()
        print(
            f"{led} of {options.partitions} partitions were led by the node that was killed:"
            f" taken for dead after {gone - killed:.1f} s, all led again"
            f" {elected - gone:.2f} s later (bar 5 s)"
        )


WORK = {
    "send": sends,
    "kill": kills,
    "many": many,
    "streams": cluster_streams.streams,
    "scale": cluster_streams.scale,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="a cluster beside a node by itself")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--only", default=",".join(WORK))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        print(describe(Path(root)))
        for name in options.only.split(","):
            WORK[name](options, Path(root))


if __name__ == "__main__":
    main()
