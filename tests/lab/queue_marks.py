"""High watermarks of queues, asked for by way of Kafka: a queue is a topic, and its log has one for
each partition. SQS has no word for it, so without this nobody would notice that what was committed
in a queue became less (HWBACK), and after the run nobody could say how far every copy must reach.

One thread with a client of its own, for a partition without a leader may take seconds to refuse.
Queues are asked in turn; which partitions one has is known when it answers for the first time."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from tests.harness.ledger import now_ns
from tests.lab import kafka_ledger as K  # noqa: N812  (every event class is used)
from tests.lab.kafka_ledger import KafkaLedger

ASK_SECONDS_MAX = 5.0
PAUSE_SECONDS = 0.2  # between one queue and the next


class QueueMarks:
    def __init__(
        self, name: str, folder: Path, queues: Sequence[str], settings: Mapping[str, Any]
    ) -> None:
        self._queues = queues
        self._ledger = KafkaLedger(folder, f"{name}-marks", "")
        self._counts: dict[str, int] = {}  # partitions, where known
        self._asker: Any = Consumer({**settings, "group.id": f"{name}-marks"})
        self._thread = threading.Thread(target=self._run, name="marks", daemon=True)
        self._ending = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def end(self, seconds: float) -> bool:
        """Whether it did, after asking once more for everything."""
        self._ending.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ending.is_set():
            for queue in self._queues:
                self._ask(queue)
                self._ending.wait(PAUSE_SECONDS)
        for queue in self._queues:
            self._ask(queue)
        self._asker.close()
        self._ledger.close()

    def _ask(self, queue: str) -> None:
        try:
            for partition in range(self._count(queue)):
                invoked_at = now_ns()
                place = TopicPartition(queue, partition)
                _, high = self._asker.get_watermark_offsets(place, timeout=ASK_SECONDS_MAX)
                self._ledger.write(K.Marks(now_ns(), queue, [(partition, high)], invoked_at))
        except KafkaException:
            return  # nobody leads it at the moment, or the queue is not there yet

    def _count(self, queue: str) -> int:
        if queue not in self._counts:
            found = self._asker.list_topics(queue, timeout=ASK_SECONDS_MAX).topics[queue]
            if not found.partitions:
                return 0
            self._counts[queue] = len(found.partitions)
        return self._counts[queue]
