"""What clients did and what they were answered, written down while it happens.

Every client thread owns one append-only file of JSON lines. A call is noted before it is made and
again after it was answered; a call without an answer is INFO, because a server that was killed may
or may not have done it. All times are CLOCK_MONOTONIC nanoseconds of one machine, so lines from
different files can be compared. The checker reads the files afterwards; nothing is judged here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import crc32c
import msgspec


class Key(NamedTuple):
    """Who sent it and as which of theirs: the identity of a message that no server can mix up."""

    producer: str
    seq: int


class Body(NamedTuple):
    """A message body that says where it belongs and carries its own checksum."""

    run: str
    key: Key
    group: str  # "" on a standard queue
    group_seq: int
    payload: str

    def text(self) -> str:
        crc = crc32c.crc32c(self._sealed(self))
        return f"{self._head()}|{crc:08x}|{self.payload}"

    def _head(self) -> str:
        return f"{self.run}|{self.key.producer}|{self.key.seq}|{self.group}|{self.group_seq}"

    @staticmethod
    def _sealed(body: Body) -> bytes:
        return f"{body._head()}|{body.payload}".encode()

    @classmethod
    def parse(cls, text: str) -> Body | None:
        """None when the text is not, byte for byte, what some ``text()`` gave."""
        parts = text.split("|", 6)
        if len(parts) != 7:
            return None
        run, producer, seq, group, group_seq, crc, payload = parts
        try:
            body = cls(run, Key(producer, int(seq)), group, int(group_seq), payload)
        except ValueError:
            return None
        return body if f"{crc32c.crc32c(cls._sealed(body)):08x}" == crc else None


class Event(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True):
    at: int  # CLOCK_MONOTONIC, ns


# ── sending ──────────────────────────────────────────────────────────────────────────────────
class Invoke(Event, frozen=True, tag="INVOKE"):
    """A send is about to leave. A retry repeats the line, with the same key and dedup id."""

    key: Key
    queue: str
    group: str = ""
    group_seq: int = 0
    dedup_id: str = ""


class Ok(Event, frozen=True, tag="OK"):
    key: Key
    message_id: str
    sequence: int = -1  # SequenceNumber, which FIFO queues tell


class Fail(Event, frozen=True, tag="FAIL"):
    """Certainly not stored: refused, or the connection was never made."""

    key: Key
    reason: str


class Info(Event, frozen=True, tag="INFO"):
    """Nobody knows: the call went out and no answer came."""

    key: Key
    reason: str


# ── receiving ────────────────────────────────────────────────────────────────────────────────
class RecvInvoke(Event, frozen=True, tag="RECV_INVOKE"):
    """A receive is about to leave. One without a closing line died with its client, and may have
    leased messages as one without an answer may."""

    call: str
    queue: str
    count_max: int


class Recv(Event, frozen=True, tag="RECV"):
    """One message of one answered receive; ``at`` is when the answer was there."""

    invoked_at: int
    call: str  # the same for all messages of one answer
    place: int  # position within the answer
    queue: str
    message_id: str
    receipt: str
    count: int  # ApproximateReceiveCount
    lease_ms: int
    key: Key | None = None  # None: the body was not one of ours, or damaged
    group: str = ""
    group_seq: int = 0
    sequence: int = -1


class RecvInfo(Event, frozen=True, tag="RECV_INFO"):
    """A receive without an answer: it may have leased messages that nobody saw."""

    invoked_at: int
    queue: str
    count_max: int
    call: str = ""


class RecvFail(Event, frozen=True, tag="RECV_FAIL"):
    """A receive that was refused, or never left: nothing was leased."""

    call: str


class RecvNone(Event, frozen=True, tag="RECV_NONE"):
    """A receive that was answered with nothing."""

    invoked_at: int
    queue: str
    call: str = ""


class DelInvoke(Event, frozen=True, tag="DEL_INVOKE"):
    receipt: str
    message_id: str


class DelOk(Event, frozen=True, tag="DEL_OK"):
    receipt: str


class DelFail(Event, frozen=True, tag="DEL_FAIL"):
    receipt: str
    reason: str


class DelInfo(Event, frozen=True, tag="DEL_INFO"):
    receipt: str
    reason: str


class ExtInvoke(Event, frozen=True, tag="EXT_INVOKE"):
    """A lease is about to be set to ``lease_ms`` from now; 0 releases it."""

    receipt: str
    message_id: str
    lease_ms: int


class ExtOk(Event, frozen=True, tag="EXT_OK"):
    receipt: str


class ExtFail(Event, frozen=True, tag="EXT_FAIL"):
    receipt: str
    reason: str


class ExtInfo(Event, frozen=True, tag="EXT_INFO"):
    receipt: str
    reason: str


# ── around them ──────────────────────────────────────────────────────────────────────────────
class Fault(Event, frozen=True, tag="FAULT"):
    """``kill``: the process died, the kernel lives. ``cut``: what was not synced is gone too.
    ``clock``: somebody's wall clock was set."""

    kind: str
    calls_open: int = 0  # how many client calls were under way: a kill at rest proves little
    until: int = 0  # of one that lasts


class Started(Event, frozen=True, tag="STARTED"):
    pass


class Hung(Event, frozen=True, tag="HUNG"):
    """A call without answer or error within its deadline while the server was up."""

    call: str
    seconds: float
    invoked_at: int = 0
    where: str = ""  # host:port of the server that was asked, where there are several


class Drained(Event, frozen=True, tag="DRAINED"):
    """How a queue looked when draining it ended; all zero and no give-up is the only good end."""

    queue: str
    visible: int
    in_flight: int
    delayed: int
    empty_polls: int


AnyEvent = (
    Invoke
    | Ok
    | Fail
    | Info
    | RecvInvoke
    | Recv
    | RecvInfo
    | RecvFail
    | RecvNone
    | DelInvoke
    | DelOk
    | DelFail
    | DelInfo
    | ExtInvoke
    | ExtOk
    | ExtFail
    | ExtInfo
    | Fault
    | Started
    | Hung
    | Drained
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)


class Ledger:
    """One client's file. Each line reaches the kernel before the client acts on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *events: AnyEvent) -> None:
        os.write(self._file, _encoder.encode_lines(events))

    def close(self) -> None:
        os.close(self._file)


def now_ns() -> int:
    return time.monotonic_ns()


def read_ledgers(paths: Iterable[Path]) -> list[AnyEvent]:
    """All events of all files, in the order they happened."""
    events: list[AnyEvent] = []
    for path in paths:
        events.extend(_decoder.decode_lines(path.read_bytes()))
    events.sort(key=lambda event: event.at)
    return events
