"""``python -m benchmarks.stalls``: how long one large request makes another client wait. Prints a
table with a bar; five minutes on an idle machine.

A ``penstock serve`` process gets each Kafka request with its largest allowed array, and each SQS
action at its largest, from ``tests/attacks/stall_requests.py``. Meanwhile another process asks for
``/_penstock/health`` again and again; the figure is its longest wait, the best of some rounds,
because anything else on the machine only adds to it."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from tests.attacks.frames import Wire
from tests.attacks.stall_requests import KAFKA, SQS, frame, shapes
from tests.attacks.stalls import Bystander
from tests.attacks.test_stalls import fill
from tests.harness.client import Fault, RawClient
from tests.harness.server import Server

WAIT_MS_MAX: Final = 100.0
QUEUE: Final = "held"


def longest_wait(server: Server, send: Callable[[], object], rounds: int) -> float:
    waits = []
    for _ in range(rounds):
        with Bystander(server.port) as bystander:
            send()
        waits.append(bystander.longest_ms)
    return min(waits)


def ask_kafka(server: Server, sent: bytes) -> None:
    with Wire(server) as wire:
        wire.send(sent)
        wire.read_frame()


def ask_sqs(server: Server, action: str, body: dict[str, object]) -> None:
    client = RawClient(server.port)
    try:
        client.call(action, body)
    except Fault:
        pass  # an invalid receipt is worked on all the same
    finally:
        client.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stalls")
    parser.add_argument("--rounds", type=int, default=3, help="number of times each is sent")
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="stalls-") as folder,
        Server(Path(folder) / "data", fsync="never", kafka_port=0) as server,
    ):
        fill(server, ("", ""))
        RawClient(server.port).call("CreateQueue", {"QueueName": QUEUE})
        for name, row in KAFKA.items():
            for shape in shapes(name):
                sent = frame(name, shape, row.bound_of(shape.path))
                title = f"{name} {shape.path} × {row.bound_of(shape.path):,}"
                wait = longest_wait(server, partial(ask_kafka, server, sent), args.rounds)
                figures[title] = wait
                print(f"{wait:8.1f} ms  {title}", flush=True)
        for action, body in SQS.items():
            asked = {"QueueUrl": f"/000000000000/{QUEUE}", **body}
            figures[action] = longest_wait(
                server, partial(ask_sqs, server, action, asked), args.rounds
            )
            print(f"{figures[action]:8.1f} ms  {action}", flush=True)
    worst = max(figures, key=figures.__getitem__)
    print(f"longest: {figures[worst]:.1f} ms ({worst}), bar {WAIT_MS_MAX:.0f} ms")
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    sys.exit(0 if figures[worst] <= WAIT_MS_MAX else 1)


if __name__ == "__main__":
    main()
