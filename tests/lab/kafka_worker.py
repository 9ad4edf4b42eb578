"""A process of Kafka clients (librdkafka): an idempotent producer that numbers its records per
partition, members of one group (``kafka_member``), and somebody who asks for high watermarks. Run
as ``python -m tests.lab.kafka_worker '<json>'``; speaks as ``sqs_worker`` does. At the end it waits
for the producer's last answers, for the group to have read everything, and reads the log once
more from its beginning."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.harness.ledger import now_ns
from tests.lab import kafka_ledger as K  # noqa: N812  (every event class is used)
from tests.lab.kafka_ledger import KafkaLedger
from tests.lab.kafka_member import QUICK, KafkaWork, Member
from tests.lab.queue_marks import QueueMarks
from tests.lab.sqs_worker import TELL_SECONDS, hear

IN_FLIGHT_MAX = 500
BURST = 20
END_SECONDS_MAX = 60.0
ASK_SECONDS_MAX = 5.0


class Sender:
    """Numbers 0, 1, 2 … to each partition in turn."""

    def __init__(self, work: KafkaWork, topic: str) -> None:
        self._work = work
        self._ledger = KafkaLedger(Path(work.folder), f"{work.name}-producer", topic)
        self._topic = topic
        self._next = [0] * work.partitions
        self._acked: list[tuple[int, int, int, int]] = []
        self._unknown: list[tuple[int, int]] = []
        self._reason = ""
        self.acked_count = 0
        self.fatal: list[str] = []
        self._producer: Any = Producer(
            {
                **QUICK,
                "bootstrap.servers": work.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.num.messages": 50,
                "message.timeout.ms": 120_000,
                "retry.backoff.ms": 50,
                "compression.type": "lz4",
                "error_cb": self._failed,
            }
        )

    def _failed(self, error: Any) -> None:
        if error.fatal():
            self.fatal.append(f"{self._topic}: fatal for the producer: {error}")

    def run(self, ending: threading.Event) -> None:
        while not ending.is_set():
            if len(self._producer) < IN_FLIGHT_MAX and not self.fatal:
                self._burst()
            self._producer.poll(self._work.pace_ms / 1_000)
            self._note()

    def _burst(self) -> None:
        at = now_ns()
        records = []
        for turn in range(BURST):
            partition = turn % self._work.partitions
            records.append((partition, self._next[partition]))
            self._next[partition] += 1
        self._ledger.write(K.Sent(at, self._topic, records))
        for partition, number in records:
            self._producer.produce(
                self._topic,
                b"%d" % number,
                partition=partition,
                on_delivery=self._reporter(partition, number, at),
            )

    def _reporter(self, partition: int, number: int, sent_at: int) -> Any:
        def report(error: Any, message: Any) -> None:
            if error is None:
                offset = message.offset()
                place = -1 if offset is None else int(offset)
                self._acked.append((partition, number, place, sent_at))
            else:
                self._unknown.append((partition, number))
                self._reason = str(error)

        return report

    def _note(self) -> None:
        if self._acked:
            self.acked_count += len(self._acked)
            self._ledger.write(K.Acked(now_ns(), self._topic, self._acked))
            self._acked = []
        if self._unknown:
            self._ledger.write(K.Unknown(now_ns(), self._topic, self._unknown, self._reason))
            self._unknown = []

    def end(self) -> list[str]:
        left = self._producer.flush(END_SECONDS_MAX)
        self._note()
        self._ledger.close()
        return [*self.fatal, *([f"{left} records without an answer"] if left else [])]


class KafkaWorker:
    def __init__(self, work: KafkaWork) -> None:
        self._work = work
        self._topic = work.topic
        self._ledger = KafkaLedger(Path(work.folder), f"{work.name}-end", self._topic)
        admin = AdminClient({**QUICK, "bootstrap.servers": work.bootstrap})
        made = admin.create_topics(
            [NewTopic(self._topic, work.partitions, 3)], request_timeout=END_SECONDS_MAX
        )
        made[self._topic].result(END_SECONDS_MAX)
        self._sender = Sender(work, self._topic)
        self._members = [Member(work, f"member{number}") for number in range(work.members)]
        self._asker: Any = self._reader(f"{work.name}-asker")
        servers = {**QUICK, "bootstrap.servers": work.bootstrap}
        self._queue_marks = QueueMarks(work.name, Path(work.folder), work.queues, servers)
        self._refusal = ""  # the last answer to a question for a watermark that was none
        self._pause = threading.Event()  # never set

    def _reader(self, group: str) -> Any:
        return Consumer(
            {
                **QUICK,
                "bootstrap.servers": self._work.bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )

    def run(self) -> None:
        ending, members_ending = threading.Event(), threading.Event()
        threading.Thread(target=hear, args=(ending,), daemon=True).start()
        sending = threading.Thread(target=self._sender.run, args=(ending,))
        sending.start()
        reading = [
            threading.Thread(target=member.run, args=(members_ending,)) for member in self._members
        ]
        for thread in reading:
            thread.start()
        self._queue_marks.start()
        print("ready", flush=True)
        while not ending.wait(TELL_SECONDS):
            print(f"calls {self._sender.acked_count}", flush=True)
            self._ask_marks()
        sending.join()
        stuck = self._sender.end()
        # By a client that knows nothing of what has been: this is about the cluster as it is.
        self._asker = self._reader(f"{self._work.name}-ends")
        ends = self._ask_marks(seconds=END_SECONDS_MAX)
        if len(ends) < self._work.partitions:
            stuck.append(f"no watermark: {self._refusal}")
        stuck += self._wait_read(ends)
        members_ending.set()
        for thread in reading:
            thread.join(END_SECONDS_MAX)
            stuck += ["a member did not end"] if thread.is_alive() else []
        stuck += [repr(member.error) for member in self._members if member.error is not None]
        read = self._read_log(ends)
        if len(read) < self._work.partitions:
            stuck.append(f"{self._topic}: of {ends} only {sorted(read)} could be read to the end")
        if not self._queue_marks.end(END_SECONDS_MAX):
            stuck.append("asking for watermarks of queues did not end")
        offsets: list[tuple[int, int]] = []
        try:
            offsets = self._group_offsets()
        except KafkaException as error:
            stuck.append(f"{self._topic}: the group's offsets are not told: {error}")
        self._ledger.write(K.Ended(now_ns(), self._topic, offsets, stuck, read))

    def _ask_marks(self, *, seconds: float = 1.0) -> dict[int, int]:
        """High watermarks, of those partitions that answer in time."""
        marks: dict[int, int] = {}
        until = time.monotonic() + seconds
        while len(marks) < self._work.partitions and time.monotonic() < until:
            for partition in range(self._work.partitions):
                if partition not in marks:
                    self._ask_mark(partition, marks)
            if len(marks) < self._work.partitions:
                self._pause.wait(0.1)
        return marks

    def _ask_mark(self, partition: int, marks: dict[int, int]) -> None:
        invoked_at = now_ns()
        place = TopicPartition(self._topic, partition)
        try:
            _, high = self._asker.get_watermark_offsets(place, timeout=ASK_SECONDS_MAX)
        except KafkaException as error:
            self._refusal = f"{self._topic}/{partition}: {error}"
            return
        marks[partition] = high
        self._ledger.write(K.Marks(now_ns(), self._topic, [(partition, high)], invoked_at))

    def _wait_read(self, ends: dict[int, int]) -> list[str]:
        """Until the members are where the log ends; what they have not read if they do not."""
        until = time.monotonic() + END_SECONDS_MAX
        while True:
            at = {
                partition: max(member.positions.get(partition, 0) for member in self._members)
                for partition in range(self._work.partitions)
            }
            behind = [
                f"{self._topic}/{partition}: the group is at {offset} of {ends.get(partition)}"
                for partition, offset in at.items()
                if partition not in ends or at[partition] < ends[partition]
            ]
            if not behind or time.monotonic() > until:
                return behind
            self._pause.wait(0.1)

    def _read_log(self, ends: dict[int, int]) -> list[int]:
        """From the beginning; the partitions of which everything was read in time."""
        reader = self._reader(f"{self._work.name}-log")
        reader.assign([TopicPartition(self._topic, partition, 0) for partition in ends])
        at = dict.fromkeys(ends, 0)
        until = time.monotonic() + END_SECONDS_MAX
        while any(at[partition] < end for partition, end in ends.items()):
            if time.monotonic() > until:
                break
            records = []
            for message in reader.consume(1_000, timeout=0.5):
                if message.error() is None:
                    records.append((message.partition(), message.offset(), int(message.value())))
                    at[message.partition()] = message.offset() + 1
            if records:
                self._ledger.write(K.Stands(now_ns(), self._topic, records))
        reader.close()
        return [partition for partition, end in ends.items() if at[partition] >= end]

    def _group_offsets(self) -> list[tuple[int, int]]:
        reader = self._reader(self._work.group)
        places = [TopicPartition(self._topic, one) for one in range(self._work.partitions)]
        found = reader.committed(places, timeout=END_SECONDS_MAX)
        reader.close()
        return [(one.partition, one.offset) for one in found if one.offset >= 0]


def main(argument: str) -> None:
    KafkaWorker(msgspec.json.decode(argument, type=KafkaWork)).run()


if __name__ == "__main__":
    main(sys.argv[1])
