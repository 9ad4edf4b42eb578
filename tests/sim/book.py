"""What clients did and what they were told, and whether one can be true with the other. Only what
was answered counts as promised; what was begun and never answered may have happened or not.

    Q1      what was deleted is never received again
    Q3      nobody else gets a message while somebody has it
    Q4, A1  whatever was sent and not deleted is received in the end
    GROUP   a FIFO group goes on only when what stands before is finished
    DEDUP   one id is one message within its window, and no other's
    RCOUNT  a count of receives grows by every one of them, and by nothing else
    CLAIM   a receipt is given once

Of an asynchronous topic a promise may end with the epoch in which it was made, and only then.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tests.sim.disk import MESSAGE, Entry
from tests.sim.violation import Violation

from penstock.cursor.leases.events import Pick
from penstock.model.limits import DEDUP_WINDOW_MS
from penstock.model.message import Claim, Message

GROUPS = ("a", "b", "c")


class Send(NamedTuple):
    number: int  # of the message that stands for it: an earlier one if it was a repetition
    dedup_id: str | None


class Got(NamedTuple):
    number: int
    pick: Pick


class Receive(NamedTuple):
    got: tuple[Got, ...]
    lease_steps: int


class Delete(NamedTuple):
    receipt: "Receipt"


class Extend(NamedTuple):
    receipt: "Receipt"
    until: int


class Mark(NamedTuple):
    offset: int  # of a bookmark


Request: TypeAlias = "Send | Receive | Delete | Extend | Mark"


class Operation(NamedTuple):
    """What a client waits for: to be answered when its record is committed."""

    offset: int
    entry: Entry | None  # None: committed before it was begun
    epoch: int
    begun_at: int
    request: Request


@dataclass(slots=True, eq=False)
class Receipt:
    number: int
    claim: Claim
    begun_at: int
    until: int  # the client counts on it
    epoch: int
    is_busy: bool = False  # an extension is under way


@dataclass(slots=True)
class Book:
    is_fifo: bool
    is_async: bool
    clock_skew_ms: int
    messages: list[Message] = field(default_factory=list)  # by number
    sent: dict[int, Operation] = field(default_factory=dict)
    of_dedup_id: dict[str, Operation] = field(default_factory=dict)
    deleting: dict[int, int] = field(default_factory=dict)  # since when at most
    deleted: dict[int, Operation] = field(default_factory=dict)
    deleted_at: dict[int, int] = field(default_factory=dict)
    receipts: dict[int, list[Receipt]] = field(default_factory=dict)
    open_receipts: list[Receipt] = field(default_factory=list)
    leases: Counter[int] = field(default_factory=Counter)  # decided on, answered or not
    attempts: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    # Of committed messages, in the order of the log:
    groups: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # offset, number
    committed_ids: dict[str, Entry] = field(default_factory=dict)
    mark: int = 0  # the furthest bookmark that was answered for

    # ── What is begun ────────────────────────────────────────────────────────────────────────

    def new_message(self, group: str | None, dedup_id: str | None) -> int:
        number = len(self.messages)
        self.messages.append(Message(number.to_bytes(16, "big"), b"", None, group, dedup_id))
        return number

    def begins_delete(self, number: int, now: int) -> None:
        self.deleting.setdefault(number, now)

    # ── What is committed ────────────────────────────────────────────────────────────────────

    def committed(self, offset: int, entry: Entry) -> None:
        if entry.kind != MESSAGE or not self.is_fifo:
            return
        message = entry.record(offset).message
        assert message.group is not None
        assert message.dedup_id is not None
        number = number_of(message)
        self.groups.setdefault(message.group, []).append((offset, number))
        first = self.committed_ids.get(message.dedup_id)
        if first is not None and self._is_same_window(first, entry):
            raise Violation(f"DEDUP {message.dedup_id} is in the log twice, again as {number}")
        self.committed_ids[message.dedup_id] = entry

    def _is_same_window(self, one: Entry, other: Entry) -> bool:
        apart_ms = abs(one.appended_at_ms - other.appended_at_ms)
        return apart_ms < DEDUP_WINDOW_MS - self.clock_skew_ms

    # ── What is answered ─────────────────────────────────────────────────────────────────────

    def answer(self, done: Operation, now: int) -> None:
        request = done.request
        if isinstance(request, Send):
            self._sent(done, request)
        elif isinstance(request, Receive):
            for got in request.got:
                self._received(done, got, request)
        elif isinstance(request, Delete):
            number = request.receipt.number
            self.deleted.setdefault(number, done)
            self.deleted_at.setdefault(number, now)
        elif isinstance(request, Mark):
            self.mark = max(self.mark, request.offset)
        else:
            receipt = request.receipt
            receipt.is_busy = False
            if not self.is_async or receipt.epoch == done.epoch:
                receipt.until = max(receipt.until, request.until)

    def _sent(self, done: Operation, request: Send) -> None:
        dedup_id = request.dedup_id
        if dedup_id is not None:
            if self.messages[request.number].dedup_id != dedup_id:
                raise Violation(f"DEDUP {dedup_id} was taken for message {request.number}")
            earlier = self.of_dedup_id.get(dedup_id)
            if earlier is not None and self._holds(earlier, done):
                assert isinstance(earlier.request, Send)
                is_other = earlier.request.number != request.number
                one, other = earlier.entry, done.entry
                if is_other and one and other and self._is_same_window(one, other):
                    raise Violation(f"DEDUP {dedup_id} was answered with two messages")
            self.of_dedup_id[dedup_id] = done
        self.sent.setdefault(request.number, done)

    def _received(self, done: Operation, got: Got, request: Receive) -> None:
        number, pick = got
        at = done.begun_at
        gone = self.deleted.get(number)
        if gone is not None and self.deleted_at[number] < at and self._holds(gone, done):
            raise Violation(f"Q1 message {number} was received at {at} after it was deleted")
        receipt = Receipt(
            number,
            Claim(0, pick.offset, pick.lease_seq),
            at,
            at + request.lease_steps,
            done.epoch,
        )
        known = self.receipts.setdefault(number, [])
        for other in known:
            if self.is_async and other.epoch != done.epoch:
                continue
            if other.begun_at <= at < other.until or at <= other.begun_at < receipt.until:
                raise Violation(f"Q3 message {number} was received at {other.begun_at} and {at}")
            if other.claim == receipt.claim:
                raise Violation(f"CLAIM {receipt.claim} was given twice")
        known.append(receipt)
        self.open_receipts.append(receipt)
        self._count(done, got)
        if self.is_fifo:
            self._check_group(done, got, request)

    def _count(self, done: Operation, got: Got) -> None:
        number, attempt = got.number, got.pick.attempt
        if not 0 < attempt <= self.leases[number]:
            raise Violation(f"RCOUNT message {number} says {attempt} of {self.leases[number]}")
        known = self.attempts.setdefault(number, [])
        for at, count, epoch in known:
            if self.is_async and epoch != done.epoch:
                continue
            if (at < done.begun_at) != (count < attempt):
                raise Violation(f"RCOUNT message {number} went from {count} to {attempt}")
        known.append((done.begun_at, attempt, done.epoch))

    def _check_group(self, done: Operation, got: Got, request: Receive) -> None:
        group = self.messages[got.number].group
        assert group is not None
        together = {each.number for each in request.got}
        for offset, number in self.groups.get(group, ()):
            if offset >= got.pick.offset:
                return
            finished_at = self.deleting.get(number)
            if number not in together and (finished_at is None or finished_at > done.begun_at):
                raise Violation(f"GROUP {group} went on to {got.number} while {number} was there")

    def _holds(self, promised: Operation, done: Operation) -> bool:
        return not self.is_async or promised.epoch == done.epoch

    # ── The end ──────────────────────────────────────────────────────────────────────────────

    def check_end(self, received: set[int], epoch: int, committed: set[int]) -> None:
        """``received``: by somebody who went on until nothing was left."""
        for number, done in self.sent.items():
            if number in received or number in self.deleting:
                continue
            if self.is_async and done.epoch < epoch and number not in committed:
                continue
            raise Violation(f"A1 message {number} was answered for and is lost")
        for number in self.deleted:
            done = self.deleted[number]
            is_promised = not self.is_async or done.epoch == epoch
            if number in received and is_promised:
                raise Violation(f"Q2 the deletion of {number} was answered for and is lost")


def number_of(message: Message) -> int:
    return int.from_bytes(message.message_id, "big")
