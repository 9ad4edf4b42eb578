"""One member of a consumer group as a process of its own, so that a test can kill it.

    python member.py BOOTSTRAP GROUP TOPIC [librdkafka-setting=value ...]

Writes JSON lines on stdout: {"assigned": [...]} and {"revoked": [...]} as they happen, and
{"got": [partition, offset, value]} for each record, which it commits at once. Ends on SIGTERM by
leaving the group."""

from __future__ import annotations

import json
import signal
import sys
from types import FrameType
from typing import Any

from confluent_kafka import Consumer


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(bootstrap: str, group: str, topic: str, *settings: str) -> None:
    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        ending = True

    signal.signal(signal.SIGTERM, end)
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "topic.metadata.refresh.interval.ms": 1_000,
    }
    config.update(dict(setting.split("=", 1) for setting in settings))
    made: Any = Consumer(config)

    def assigned(_: Consumer, places: list[Any]) -> None:
        say(assigned=sorted(place.partition for place in places))

    def revoked(_: Consumer, places: list[Any]) -> None:
        say(revoked=sorted(place.partition for place in places))

    made.subscribe([topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    while not ending:
        message = made.poll(0.2)
        if message is None:
            continue
        if message.error() is not None:
            say(error=str(message.error()))
            continue
        value = message.value()
        assert value is not None
        say(got=[message.partition(), message.offset(), value.decode()])
        made.commit(message, asynchronous=False)
    made.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
