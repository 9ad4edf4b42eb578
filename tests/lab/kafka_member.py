"""A member of the Kafka group (librdkafka): reads, writes down what it read, commits now and then.
Those that belong to the load run as threads of ``kafka_worker``. One that is to crash or to stand
still is a process: ``python -m tests.lab.kafka_member '<json>'`` says ``ready``, then how many
records it has read, again and again, until it is told ``end``."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaException
from tests.harness.kafka_load import STAY
from tests.harness.ledger import now_ns
from tests.lab import kafka_ledger as K  # noqa: N812  (every event class is used)
from tests.lab.kafka_ledger import KafkaLedger
from tests.lab.sqs_worker import TELL_SECONDS, hear

COMMIT_EVERY = 50
SESSION_MS = 10_000  # after which a silent member is one no more
END_SECONDS_MAX = 60.0
QUICK: dict[str, Any] = {
    **STAY,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
}


class KafkaWork(msgspec.Struct, frozen=True):
    name: str
    folder: str
    bootstrap: str
    partitions: int = 6
    members: int = 2
    pace_ms: int = 25  # between bursts
    queues: tuple[str, ...] = ()  # whose high watermarks are asked for too

    @property
    def topic(self) -> str:
        return f"{self.name}-topic"

    @property
    def group(self) -> str:
        return f"{self.name}-group"


class MemberWork(msgspec.Struct, frozen=True):
    name: str
    load: KafkaWork  # whose group it joins


class Member:
    """Reads, writes down what it read, commits now and then."""

    def __init__(self, work: KafkaWork, name: str) -> None:
        self._name = f"{work.name}-{name}"
        self._ledger = KafkaLedger(Path(work.folder), self._name, work.topic)
        self._topic = work.topic
        self._assignment = 0
        self.read_count = 0
        self.positions: dict[int, int] = {}  # one behind the last read
        self.error: BaseException | None = None
        self._consumer: Any = Consumer(
            {
                **QUICK,
                "bootstrap.servers": work.bootstrap,
                "group.id": work.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 500,
                "partition.assignment.strategy": "cooperative-sticky",
            }
        )

    def run(self, ending: threading.Event) -> None:
        try:
            self._run(ending)
        except BaseException as error:  # told at the end: a dead member is a failed run
            self.error = error

    def _run(self, ending: threading.Event) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._rebalanced, on_revoke=self._rebalanced,
            on_lost=self._rebalanced,
        )  # fmt: skip
        since_commit = 0
        while not ending.is_set():
            messages = self._consumer.consume(200, timeout=0.1)
            records = [
                (message.partition(), message.offset(), int(message.value()))
                for message in messages
                if message.error() is None
            ]
            if not records:
                continue
            self._ledger.write(K.Read(now_ns(), self._topic, self._name, self._assignment, records))
            self.positions.update((partition, offset + 1) for partition, offset, _ in records)
            self.read_count += len(records)
            since_commit += len(records)
            if since_commit >= COMMIT_EVERY:
                since_commit = 0
                self._commit()
        self._commit()
        self._consumer.close()
        self._ledger.close()

    def _rebalanced(self, _consumer: Any, _partitions: Any) -> None:
        self._assignment += 1

    def _commit(self) -> None:
        """No answer means nothing: it may have been done or not."""
        try:
            places = self._consumer.commit(asynchronous=False) or ()
        except KafkaException:
            return
        done = [(one.partition, one.offset) for one in places if one.error is None]
        self._ledger.write(
            K.Committed(now_ns(), self._topic, [each for each in done if each[1] >= 0])
        )


def main(argument: str) -> None:
    work = msgspec.json.decode(argument, type=MemberWork)
    member = Member(work.load, work.name)
    ending = threading.Event()
    threading.Thread(target=hear, args=(ending,), daemon=True).start()
    reading = threading.Thread(target=member.run, args=(ending,))
    reading.start()
    print("ready", flush=True)
    while not ending.wait(TELL_SECONDS):
        print(f"calls {member.read_count}", flush=True)
    reading.join(END_SECONDS_MAX)
    if member.error is not None:
        raise member.error


if __name__ == "__main__":
    main(sys.argv[1])
