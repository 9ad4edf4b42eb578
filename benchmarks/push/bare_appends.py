"""``python -m benchmarks.push.bare_appends FOLDER COUNT FSYNC``: prints how many milliseconds a
broker takes for one append of 1 KiB to each of COUNT queues, all at once."""

import asyncio
import sys
import time
from pathlib import Path

import uvloop
from tests.unit.broker.stage import on_stage

from penstock.model.calls import Append
from penstock.model.message import Message
from penstock.model.topic import Fsync

ROUNDS = 7


async def main(folder: Path, count: int, fsync: Fsync) -> None:
    message = Message(bytes(16), b"x" * 1_024)
    async with on_stage(folder) as stage:
        queues = [await stage.topic(f"q{number}", fsync=fsync) for number in range(count)]
        took_ms = []
        for _ in range(ROUNDS):
            began = time.monotonic()
            await asyncio.gather(
                *(stage.broker.call(Append(queue, 0, (message,))) for queue in queues)
            )
            took_ms.append((time.monotonic() - began) * 1_000)
    print(min(took_ms[1:]))  # the first opens the logs


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), int(sys.argv[2]), Fsync(sys.argv[3])))
