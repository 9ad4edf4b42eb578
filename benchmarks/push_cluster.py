"""Publish, then receive without waiting: ``python -m benchmarks.push_cluster [--messages N]``.

A client publishes a message to an SNS topic with one subscribed queue and receives from the queue
as soon as it has the reply, with WaitTimeSeconds 0. The message must be there: always on one node
that serves with several worker processes, and 999 times of 1,000 on three nodes, where the client
publishes at one node and receives at the next; the rest within a second."""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.cluster import PenstockCluster
from tests.harness.server import Server, stable_port
from tests.harness.sns_site import Site

from benchmarks.machine import describe
from benchmarks.push.bench import percentile

PARTITIONS = 3
WORKERS = 2
CLIENTS = 8  # connections to workers: the kernel chooses a worker for each
KNOWN_SECONDS_MAX = 60.0
SOON_SECONDS = 1.0
LATE_SECONDS_MAX = 30.0
DELETED_AT_ONCE = 10


@dataclass
class Found:
    at_once: int = 0
    soon: int = 0  # within SOON_SECONDS
    late: int = 0
    never: int = 0
    publish_ms: list[float] = field(default_factory=list)

    def text(self) -> str:
        p50, p99, most = (percentile(self.publish_ms, part) for part in (0.5, 0.99, 1.0))
        return (
            f"found at once {self.at_once:,}, within a second {self.soon:,}, later {self.late:,},"
            f" never {self.never:,}; Publish p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {most:.0f} ms"
        )


class Queue:
    """A queue that is subscribed to a topic, seen from all nodes."""

    def __init__(self, site: Site) -> None:
        self._site = site
        attributes = {"PenstockPartitions": str(PARTITIONS)}
        made = site.sns[0].create_topic(Name="found", Attributes=attributes)
        self._arn = str(made["TopicArn"])
        self._url, arn = site.queue("found")
        raw = {"RawMessageDelivery": "true"}
        site.sns[0].subscribe(TopicArn=self._arn, Protocol="sqs", Endpoint=arn, Attributes=raw)
        self._used: list[dict[str, str]] = []

    def wait_until_known(self) -> None:
        """Wait until all nodes know topic, queue and subscription, and the queue is empty."""
        ends_at = time.monotonic() + KNOWN_SECONDS_MAX
        in_row = 0
        while in_row < PARTITIONS * len(self._site.sns):
            assert time.monotonic() < ends_at, "the subscription is not known at all nodes"
            text = f"try {time.monotonic_ns()}"
            self.publish(in_row, text)
            in_row = in_row + 1 if text in self.receive(in_row + 1, wait_s=1) else 0
        while self.receive(0, wait_s=1):
            pass

    def publish(self, at: int, text: str) -> None:
        clients = self._site.sns
        clients[at % len(clients)].publish(TopicArn=self._arn, Message=text)

    def receive(self, at: int, *, wait_s: int = 0) -> Sequence[str]:
        clients = self._site.sqs
        sqs: Any = clients[at % len(clients)]
        reply = sqs.receive_message(
            QueueUrl=self._url, MaxNumberOfMessages=10, WaitTimeSeconds=wait_s
        )
        messages = reply.get("Messages", ())
        for one in messages:
            self._used.append({"Id": str(len(self._used)), "ReceiptHandle": one["ReceiptHandle"]})
            if len(self._used) == DELETED_AT_ONCE:
                sqs.delete_message_batch(QueueUrl=self._url, Entries=self._used)
                self._used = []
        return [str(one["Body"]) for one in messages]


def measure(site: Site, count: int) -> Found:
    queue, found = Queue(site), Found()
    queue.wait_until_known()
    missing: dict[str, float] = {}  # when Publish was answered

    def take(bodies: Sequence[str]) -> None:
        for body in bodies:
            answered_at = missing.pop(body, None)
            if answered_at is not None:
                is_soon = time.monotonic() - answered_at < SOON_SECONDS
                found.soon += is_soon
                found.late += not is_soon

    for number in range(count):
        text, began = str(number), time.monotonic()
        queue.publish(number, text)
        answered_at = time.monotonic()
        found.publish_ms.append((answered_at - began) * 1_000)
        bodies = queue.receive(number + 1)
        if text in bodies:
            found.at_once += 1
        else:
            missing[text] = answered_at
        take(bodies)
        if missing:
            took_ms = found.publish_ms[-1]
            print(f"message {text} was not found at once; Publish took {took_ms:.0f} ms")
        while missing and time.monotonic() - answered_at < LATE_SECONDS_MAX:
            take(queue.receive(number + 1, wait_s=1))
        found.never += len(missing)
        missing.clear()
    return found


def workers(folder: Path, stack: ExitStack) -> Site:
    server = Server(
        folder / "workers",
        port=stable_port(),
        kafka_port=0,
        arguments=("--workers", str(WORKERS)),
        partitions=2 * WORKERS,
    )
    stack.enter_context(server)
    return Site([server.url] * CLIENTS, server.kafka)


def cluster(folder: Path, stack: ExitStack) -> Site:
    made = stack.enter_context(PenstockCluster(folder / "cluster"))
    return Site([node.url for node in made.nodes.values()], made.bootstrap)


WORK = {"workers": (workers, 1.0), "cluster": (cluster, 0.999)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Publish, then receive without waiting.")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--only", default=",".join(WORK))
    given = parser.parse_args()
    is_met = True
    with tempfile.TemporaryDirectory() as root:
        print(describe(Path(root)), flush=True)
        for name in given.only.split(","):
            start, part = WORK[name]
            with ExitStack() as stack:
                began = time.monotonic()
                found = measure(start(Path(root), stack), given.messages)
            bar = part * given.messages
            is_good = found.at_once >= bar and not found.late and not found.never
            is_met = is_met and is_good
            print(
                f"{name}: of {given.messages:,} messages {found.text()};"
                f" at once ≥ {bar:,.0f} {'met' if is_good else 'MISSED'}"
                f" ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
