"""What Kafka clients did and saw, in files of their own beside those of the SQS clients: one line
per burst and not per record, for there are many. Records are numbers, counted per partition by the
one idempotent producer of a topic. ``kafka_check`` judges."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

SUFFIX = ".kafka.jsonl"


class Event(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True):
    at: int  # CLOCK_MONOTONIC, ns
    topic: str


class Sent(Event, frozen=True, tag="SENT"):
    """About to be given to the producer: (partition, number)."""

    records: list[tuple[int, int]]


class Acked(Event, frozen=True, tag="ACKED"):
    """(partition, number, offset or -1, when it was given to the producer)."""

    records: list[tuple[int, int, int, int]]


class Unknown(Event, frozen=True, tag="UNKNOWN"):
    """The producer gave up on it; it may stand in the log or not: (partition, number)."""

    records: list[tuple[int, int]]
    reason: str


class Read(Event, frozen=True, tag="READ"):
    """By a member of the group: (partition, offset, number). ``assignment`` rises with every
    rebalance the member saw; order is promised within one."""

    member: str
    assignment: int
    records: list[tuple[int, int, int]]


class Committed(Event, frozen=True, tag="COMMITTED"):
    """Answered commits of the group: (partition, offset)."""

    places: list[tuple[int, int]]


class Marks(Event, frozen=True, tag="MARKS"):
    """High watermarks as they were told: (partition, offset)."""

    places: list[tuple[int, int]]
    invoked_at: int


class Stands(Event, frozen=True, tag="STANDS"):
    """The log as it stands at the end: (partition, offset, number)."""

    records: list[tuple[int, int, int]]


class Ended(Event, frozen=True, tag="ENDED"):
    """The last line. What the group has committed, what did not come to an end in time, and which
    partitions were read up to their end: None means all."""

    offsets: list[tuple[int, int]]
    stuck: list[str]
    read: list[int] | None = None


AnyEvent = Sent | Acked | Unknown | Read | Committed | Marks | Stands | Ended

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)


class KafkaLedger:
    """One thread's file."""

    def __init__(self, folder: Path, name: str, topic: str) -> None:
        self.topic = topic
        self._file = os.open(
            folder / f"{name}{SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )

    def write(self, event: AnyEvent) -> None:
        os.write(self._file, _encoder.encode(event) + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_kafka_ledgers(folder: Path) -> list[AnyEvent]:
    """All events of all files, in the order they happened."""
    return merged(path.read_bytes() for path in sorted(folder.glob(f"*{SUFFIX}")))


def merged(files: Iterable[bytes]) -> list[AnyEvent]:
    events = [event for data in files for event in _decoder.decode_lines(data)]
    events.sort(key=lambda event: event.at)
    return events
