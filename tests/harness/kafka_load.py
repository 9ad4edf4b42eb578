"""Kafka clients under load, and what they were promised: an idempotent producer that numbers its
records per partition, members of one group that commit what they read, and the verdict.

LOST      acknowledged to the producer, or read by nobody in the group, at the end
DUP       in the log more than once, although the producer is idempotent
REORDER   in the log behind a record that was sent later to the same partition
BACK      a commit that was answered and is gone: the group's offset lies below it

Reading a record twice is no fault: a member that dies between reading and committing leaves it to
the next one. What may not happen is that the group goes past a record that nobody read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer

QUEUED_MAX = 2_000
# With its one server down librdkafka gives up all it knows and begins anew from the bootstrap
# address; now and then it then waits for a handle that it has thrown away. Not what is tried here.
STAY = {"metadata.recovery.strategy": "none"}


@dataclass
class Verdict:
    lost: list[str] = field(default_factory=list)
    dup: list[str] = field(default_factory=list)
    reorder: list[str] = field(default_factory=list)
    back: list[str] = field(default_factory=list)

    def assert_clean(self) -> None:
        found = {
            name: (len(rows), rows[:5])
            for name, rows in (
                ("LOST", self.lost),
                ("DUP", self.dup),
                ("REORDER", self.reorder),
                ("BACK", self.back),
            )
            if rows
        }
        assert not found, found


class Numbered:
    """Sends 0, 1, 2 … to each partition in turn until it is told to end."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.acknowledged: list[set[int]] = [set() for _ in range(partitions)]
        self.sent = [0] * partitions
        self.errors: list[str] = []
        self._topic = topic
        self._ending = threading.Event()
        self._producer: Any = Producer(
            {
                **STAY,
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.num.messages": 50,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "compression.type": "lz4",
                "log_level": 0,
                "error_cb": self._failed,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged))

    @property
    def in_flight(self) -> int:
        return len(self._producer)

    def start(self) -> None:
        self._thread.start()

    def end(self, seconds: float) -> None:
        """Everything sent is answered, or it is named among the errors."""
        self._ending.set()
        self._thread.join(seconds)
        left = self._producer.flush(seconds)
        if left:
            self.errors.append(f"{left} records without an answer")

    def _failed(self, error: Any) -> None:
        if error.fatal():
            self.errors.append(f"fatal: {error}")

    def _run(self) -> None:
        partitions = len(self.sent)
        turn = 0
        while not self._ending.is_set():
            self._producer.poll(0.002)
            while len(self._producer) < QUEUED_MAX // 4 and not self._ending.is_set():
                partition = turn % partitions
                turn += 1
                number = self.sent[partition]
                self._producer.produce(
                    self._topic,
                    b"%d" % number,
                    partition=partition,
                    on_delivery=self._reporter(partition, number),
                )
                self.sent[partition] += 1
                if turn % 40 == 0:
                    break

    def _reporter(self, partition: int, number: int) -> Callable[[Any, Any], None]:
        def report(error: Any, _: Any) -> None:
            if error is None:
                self.acknowledged[partition].add(number)
            else:
                self.errors.append(f"{partition}:{number} {error}")

        return report


class Members:
    """Threads of one group. Each reads, notes what it read, and commits every few records."""

    COMMIT_EVERY = 25

    def __init__(self, bootstrap: str, group: str, topic: str, *, count: int) -> None:
        self.read: dict[int, set[int]] = {}
        self.committed: dict[int, int] = {}  # the highest answered, by partition
        self.deliveries = 0
        self.commits = 0
        self.commits_failed = 0
        self._lock = threading.Lock()
        self._ending = threading.Event()
        settings = {
            **STAY,
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 500,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "partition.assignment.strategy": "cooperative-sticky",
            "log_level": 0,
        }
        self._threads = [
            threading.Thread(target=self._run, args=(Consumer(settings), topic), daemon=True)
            for _ in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self, seconds: float) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(seconds)
            assert not thread.is_alive(), "a member does not end"

    def _run(self, consumer: Any, topic: str) -> None:
        consumer.subscribe([topic])
        since_commit = 0
        while not self._ending.is_set():
            message = consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue  # a broker that is down is said so here; the client goes on by itself
            with self._lock:
                self.deliveries += 1
                self.read.setdefault(message.partition(), set()).add(int(message.value()))
            since_commit += 1
            if since_commit >= self.COMMIT_EVERY:
                since_commit = 0
                self._commit(consumer)
        self._commit(consumer)
        consumer.close()

    def _commit(self, consumer: Any) -> None:
        """What was polled so far. No answer means nothing: it may have been done or not."""
        try:
            places = consumer.commit(asynchronous=False)
        except KafkaException:
            with self._lock:
                self.commits_failed += 1
            return
        with self._lock:
            for place in places:
                if place.error is None and place.offset >= 0:
                    self.commits += 1
                    before = self.committed.get(place.partition, 0)
                    self.committed[place.partition] = max(before, place.offset)


def judge(
    sender: Numbered, members: Members, log: dict[int, list[int]], offsets: dict[int, int]
) -> Verdict:
    """``log``: the numbers in each partition as they stand there; ``offsets``: the group's."""
    verdict = Verdict()
    for partition, acknowledged in enumerate(sender.acknowledged):
        stands = log.get(partition, [])
        seen: set[int] = set()
        highest = -1
        for number in stands:
            if number in seen:
                verdict.dup.append(f"{partition}:{number}")
            elif number < highest:
                verdict.reorder.append(f"{partition}:{number} behind {highest}")
            seen.add(number)
            highest = max(highest, number)
        verdict.lost += [f"{partition}:{n} not in the log" for n in sorted(acknowledged - seen)]
        unread = seen - members.read.get(partition, set())
        verdict.lost += [f"{partition}:{number} read by nobody" for number in sorted(unread)]
        answered = members.committed.get(partition, 0)
        if offsets.get(partition, 0) < answered:
            verdict.back.append(f"{partition}: {offsets.get(partition)} below {answered}")
    return verdict
