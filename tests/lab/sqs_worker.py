"""A process of SQS clients: queues of its own, producers and consumers over them, and a ledger per
thread. Run as ``python -m tests.lab.sqs_worker '<json>'`` at the clients' place; it says ``ready``
when its queues exist, then how many calls were answered, again and again, and goes on until it is
told ``end``: then producers stop, consumers stop, and all queues are drained."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from random import Random

import msgspec
from tests.harness.load import Load, Queue
from tests.lab.boto_client import BotoClient, Endpoint

TELL_SECONDS = 0.25


class SqsWork(msgspec.Struct, frozen=True):
    name: str
    seed: str
    folder: str
    urls: tuple[str, ...]
    standard_queues: int = 1
    fifo_queues: int = 1
    producers: int = 1  # of each queue
    consumers: int = 1
    groups: int = 8  # of each producer of a FIFO queue
    pace_ms: int = 20
    drop_share: float = 0.03
    crew: str = ""  # tells apart processes that work on the same queues

    def queue_names(self) -> list[str]:
        return [
            *(f"{self.name}-s{number}" for number in range(self.standard_queues)),
            *(f"{self.name}-f{number}.fifo" for number in range(self.fifo_queues)),
        ]


class SqsWorker:
    def __init__(self, work: SqsWork) -> None:
        self._work = work
        chance = Random(f"{work.seed}-{work.name}")
        endpoints = [Endpoint(url) for url in work.urls]

        def connect() -> BotoClient:
            own = Random(chance.random())
            return BotoClient(endpoints, chance=own, pace_seconds=work.pace_ms / 1_000)

        folder = Path(work.folder)
        self.load = Load(0, folder, seed=f"{work.seed}-{work.name}", connect=connect)
        for name in work.queue_names():
            queue = self.load.create_queue(name)
            self._fill(queue, groups=work.groups if queue.is_fifo else 0)

    def _fill(self, queue: Queue, *, groups: int) -> None:
        stem = queue.name.removesuffix(".fifo") + self._work.crew
        for number in range(self._work.producers):
            self.load.producer(f"{stem}-p{number}", queue, groups=groups)
        for number in range(self._work.consumers):
            self.load.consumer(f"{stem}-c{number}", queue, drop_share=self._work.drop_share)

    def run(self) -> None:
        ending = threading.Event()
        threading.Thread(target=hear, args=(ending,), daemon=True).start()
        self.load.start()
        print("ready", flush=True)
        while not ending.wait(TELL_SECONDS):
            print(f"calls {self.load.gate.done_count}", flush=True)
        self.load.end()
        self.load.close()


def hear(ending: threading.Event) -> None:
    """Until ``end`` is said, or whoever started this is gone."""
    for line in sys.stdin:
        if line.strip() == "end":
            break
    ending.set()


def main(argument: str) -> None:
    SqsWorker(msgspec.json.decode(argument, type=SqsWork)).run()


if __name__ == "__main__":
    main(sys.argv[1])
