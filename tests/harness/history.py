"""Ledger lines put together into lives: one per message sent, with its deliveries and their ends.

The checker asks questions of this; the order of lines in a life is the order in which they
happened. A call that has no closing line (its client died with it) is treated like INFO."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from tests.harness import ledger as L  # noqa: N812  (every event class is used)


class Sent(Enum):
    OK = auto()
    INFO = auto()
    FAIL = auto()


class End(Enum):
    """How a delete or an extension ended."""

    OK = auto()
    INFO = auto()
    FAIL = auto()


@dataclass(slots=True)
class Touch:
    """A delete or a change of a lease by some receipt of a message."""

    invoked_at: int
    receipt: str
    lease_ms: int = 0
    end: End = End.INFO
    ended_at: float = math.inf


@dataclass(slots=True)
class Life:
    """One message as its producer knows it."""

    key: L.Key
    queue: str = ""
    group: str = ""
    group_seq: int = 0
    dedup_id: str = ""
    invokes: int = 0
    oks: list[L.Ok] = field(default_factory=list)
    fails: int = 0
    deliveries: list[L.Recv] = field(default_factory=list)
    deletes: list[Touch] = field(default_factory=list)
    extends: list[Touch] = field(default_factory=list)
    lines: list[L.AnyEvent] = field(default_factory=list)

    @property
    def sent(self) -> Sent:
        if self.oks:
            return Sent.OK
        return Sent.FAIL if self.fails == self.invokes else Sent.INFO

    @property
    def answered_ids(self) -> set[str]:
        return {ok.message_id for ok in self.oks}

    @property
    def delete_invoked_at(self) -> float:
        """When it may first have been deleted; never, if every delete was refused."""
        return min(
            (touch.invoked_at for touch in self.deletes if touch.end is not End.FAIL),
            default=math.inf,
        )

    @property
    def deleted_at(self) -> float:
        """When a delete was first answered: from here on it must never be seen again."""
        return min(
            (touch.ended_at for touch in self.deletes if touch.end is End.OK), default=math.inf
        )

    def held_until(self, delivery: L.Recv, *, seen_at: int) -> float:
        """A moment before which this lease certainly had not run out, as far as can be known at
        ``seen_at``. It began no earlier than its receive was invoked, and each change of it may
        have been applied at any time from its own invocation on; where a change is not certain,
        or came by the receipt of another lease, the earlier of both readings counts."""
        until: float = delivery.invoked_at + delivery.lease_ms * 1_000_000
        for touch in self.extends:
            if touch.invoked_at >= seen_at or touch.end is End.FAIL:
                continue
            if touch.ended_at < delivery.invoked_at:
                continue
            changed = touch.invoked_at + touch.lease_ms * 1_000_000
            is_certain = touch.end is End.OK and touch.ended_at < seen_at
            if is_certain and touch.receipt == delivery.receipt:
                until = changed
            else:
                until = min(until, changed)
        return until

    def story(self) -> str:
        start = self.lines[0].at if self.lines else 0
        head = f"{self.key.producer}/{self.key.seq} in {self.queue}"
        if self.group:
            head += f", group {self.group} number {self.group_seq}"
        lines = [f"  {(line.at - start) / 1e6:12.3f} ms  {line!r}" for line in self.lines]
        return "\n".join([head, *lines])


@dataclass(slots=True)
class History:
    lives: dict[L.Key, Life] = field(default_factory=dict)
    strays: list[L.Recv] = field(default_factory=list)  # bodies that are not whole
    unknown: dict[str, list[L.RecvInfo]] = field(default_factory=lambda: defaultdict(list))
    cuts: list[int] = field(default_factory=list)
    faults: list[L.Fault] = field(default_factory=list)
    hung: list[L.Hung] = field(default_factory=list)
    drained: dict[str, L.Drained] = field(default_factory=dict)
    queues: set[str] = field(default_factory=set)

    def cut_between(self, start: int, end: int) -> bool:
        return any(start < cut < end for cut in self.cuts)


class _Builder:
    """Folds the lines, in order of time, into a history."""

    def __init__(self) -> None:
        self.history = History()
        self._by_receipt: dict[str, Life] = {}
        self._deletes: dict[str, Touch] = {}  # the open call of each receipt
        self._extends: dict[str, Touch] = {}

    def add(self, event: L.AnyEvent) -> None:
        match event:
            case L.Invoke() | L.Ok() | L.Fail() | L.Info():
                self._add_send(event)
            case L.Recv():
                self._add_delivery(event)
            case L.DelInvoke():
                self._open(self._deletes, event.receipt, Touch(event.at, event.receipt), event)
            case L.ExtInvoke():
                touch = Touch(event.at, event.receipt, event.lease_ms)
                self._open(self._extends, event.receipt, touch, event)
            case L.DelOk() | L.DelFail() | L.DelInfo():
                self._close(self._deletes, event.receipt, event)
            case L.ExtOk() | L.ExtFail() | L.ExtInfo():
                self._close(self._extends, event.receipt, event)
            case _:
                self._add_circumstance(event)

    def _life(self, key: L.Key) -> Life:
        life = self.history.lives.get(key)
        if life is None:
            life = self.history.lives[key] = Life(key)
        return life

    def _add_send(self, event: L.Invoke | L.Ok | L.Fail | L.Info) -> None:
        life = self._life(event.key)
        life.lines.append(event)
        match event:
            case L.Invoke():
                self.history.queues.add(event.queue)
                life.queue, life.dedup_id = event.queue, event.dedup_id
                life.group, life.group_seq = event.group, event.group_seq
                life.invokes += 1
            case L.Ok():
                life.oks.append(event)
            case L.Fail():
                life.fails += 1
            case L.Info():
                pass

    def _add_delivery(self, event: L.Recv) -> None:
        self.history.queues.add(event.queue)
        if event.key is None:
            self.history.strays.append(event)
            return
        life = self._life(event.key)
        life.deliveries.append(event)
        life.lines.append(event)
        self._by_receipt[event.receipt] = life

    def _open(self, calls: dict[str, Touch], receipt: str, touch: Touch, event: L.AnyEvent) -> None:
        life = self._by_receipt.get(receipt)
        if life is None:
            return  # the message of a stray body: counted already
        (life.deletes if calls is self._deletes else life.extends).append(touch)
        life.lines.append(event)
        calls[receipt] = touch

    def _close(
        self,
        calls: dict[str, Touch],
        receipt: str,
        event: L.DelOk | L.DelFail | L.DelInfo | L.ExtOk | L.ExtFail | L.ExtInfo,
    ) -> None:
        touch = calls.pop(receipt, None)
        if touch is None:
            return
        match event:
            case L.DelOk() | L.ExtOk():
                touch.end, touch.ended_at = End.OK, event.at
            case L.DelFail() | L.ExtFail():
                touch.end, touch.ended_at = End.FAIL, event.at
            case _:
                pass  # still unknown: it may have happened at any time since
        self._by_receipt[receipt].lines.append(event)

    def _add_circumstance(self, event: L.AnyEvent) -> None:
        history = self.history
        match event:
            case L.RecvInfo():
                history.unknown[event.queue].append(event)
            case L.Fault():
                history.faults.append(event)
                if event.kind == "cut":
                    history.cuts.append(event.at)
            case L.Hung():
                history.hung.append(event)
            case L.Drained():
                history.queues.add(event.queue)
                history.drained[event.queue] = event
            case _:
                pass


def build_history(events: Iterable[L.AnyEvent]) -> History:
    builder = _Builder()
    for event in sorted(events, key=lambda event: event.at):
        builder.add(event)
    return builder.history
