"""Shows messages of a queue through the admin API, for ``message peek`` and ``message tail``. The
messages are not received, so consumers still get them. Deleted messages are not shown, so a tail
misses messages that are deleted quickly. Receives and deletions have offsets too, so the offset of
the tenth message from the end cannot be computed, and ``_last`` searches backwards for it."""

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.command import Session
from penstock.cli.messages.sending import typed
from penstock.cli.terminal.failure import Misuse
from penstock.cli.terminal.output import Column, Json, columns, one_line, time_of_day

if TYPE_CHECKING:
    from penstock.cli.topics.offsets import Target

_PAGE_COUNT_MAX = 100
_WAIT_MS = 10_000
_BODY_WIDTH = 100
_LAST_MAX = 10_000

Starts = str | Mapping[str, int]
_PEEK_COLUMNS = columns(
    "partition# PART, offset#, state_line STATE, attempts# TRIES, age_s# AGE, group, "
    "source_line FROM, body_line BODY"
)


class TailRequest(NamedTuple):
    origin: "Target | str | None" = None  # None: latest; with a group, earliest
    partition: int | None = None
    group: str | None = None  # consumer group of a topic
    count_max: int | None = None
    pattern: str | None = None
    is_following: bool = True

    def matcher(self) -> Callable[[str], object]:
        try:
            return re.compile(self.pattern or "").search
        except re.error as error:
            raise Misuse("the --grep pattern is invalid", f"regex error: {error}") from None


def as_item(row: Json, now_ms: int | None = None) -> Json:
    item = {key: value for key, value in row.items() if value not in ({}, None)}
    if "attributes" in item:
        item["attributes"] = typed(item["attributes"], "data_type", "value", "value_base64")
    if "source_arn" in item:
        item["source"] = item.pop("source_arn")
    if now_ms is not None:
        item["age_s"] = max(0, now_ms - item["sent_at_ms"]) / 1_000
    return item


def _body(item: Json) -> str:
    return str(item["body"]) if "body" in item else f"base64:{item.get('body_base64', '')}"


def state_text(item: Json) -> str:
    """Return the state of a message, such as "blocked by offset 0, until 09:27:12 UTC"."""
    text = str(item["state"]).replace("_", " ")
    if "blocked_by" in item:
        text += f" by offset {item['blocked_by']},"
    return f"{text} until {time_of_day(item['until_ms'])}" if "until_ms" in item else text


def peek(session: Session, queue: str, *, count: int, partition: int | None, start: int) -> None:
    now_ms = int(time.time() * 1_000)
    rows = _QueueLog(session, queue, partition).until_end(str(start))
    items: Iterable[Json] = (as_item(row, now_ms) for row in islice(rows, count))
    shown: tuple[Column, ...] = _PEEK_COLUMNS
    if session.out.is_table:
        items = [
            {
                **item,
                "state_line": state_text(item),
                "source_line": item["source"].rpartition(":")[2] if "source" in item else None,
                "body_line": one_line(_body(item), _BODY_WIDTH),
            }
            for item in items
        ]
        # Only a dead-letter queue has messages that came from another queue.
        if not any(map(itemgetter("source_line"), items)):
            shown = tuple(each for each in shown if each.key != "source_line")
    session.out.many(items, columns=shown, name="message_id", empty=f"no messages in '{queue}'")


def tail(session: Session, queue: str, request: TailRequest) -> None:
    start, last = _origin(str(request.origin or "end"))
    matches = request.matcher()
    log = _QueueLog(session, queue, request.partition)
    shown = 0
    for row in log.tailed(start, last, is_ending=not request.is_following):
        item = as_item(row)
        body = _body(item)
        if not matches(body):
            continue
        place = f"{item['partition']}:{item['offset']}"
        session.out.streamed(item, text=f"{place}  {state_text(item)}  {body}", name="message_id")
        shown += 1
        if shown == request.count_max:
            return


def _origin(text: str) -> tuple[str, int]:
    """Parse ``--from`` into a start position for the API and N. N is 0 unless ``-N`` is given."""
    text = {"earliest": "begin", "latest": "end"}.get(text, text)
    if text in ("begin", "end"):
        return text, 0
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 18:
        if not text.startswith("-"):
            return text, 0
        if int(digits) <= _LAST_MAX:
            return "end", int(digits)
    raise Misuse(
        f"cannot start at '{text}'",
        f"--from takes earliest, latest, -N (the last N messages, up to {_LAST_MAX}) or an offset",
    )


class _QueueLog(NamedTuple):
    session: Session
    queue: str
    partition: int | None  # None: all

    def tailed(self, start: str, last: int, *, is_ending: bool) -> Iterator[Json]:
        starts: Starts = start
        if last:
            starts = self._end()
            yield from self._last(starts, last)
        if is_ending:
            if not last and start != "end":
                yield from self.until_end(start)
            return
        while True:
            rows, starts = self._page(starts, wait_ms=_WAIT_MS)
            yield from rows

    def until_end(self, starts: Starts) -> Iterator[Json]:
        """Yield messages up to the current end of the log, without waiting for later messages."""
        yield from self._between(starts, self._end())

    def _page(
        self, starts: Starts, *, count: int = _PAGE_COUNT_MAX, wait_ms: int = 0
    ) -> tuple[list[Json], dict[str, int]]:
        if not isinstance(starts, str):
            starts = ",".join(f"{number}:{offset}" for number, offset in starts.items())
        reply = self.session.admin.messages(
            self.queue, start=starts, partition=self.partition, count=count, wait_ms=wait_ms
        )
        return reply["messages"], reply["next"]

    def _end(self) -> dict[str, int]:
        return self._page("end", count=1)[1]

    def _between(self, starts: Starts, ends: Mapping[str, int]) -> Iterator[Json]:
        while True:
            rows, nexts = self._page(starts)
            for row in rows:
                if row["offset"] < ends.get(str(row["partition"]), 0):
                    yield row
            # Without progress there are no more messages, even if the end was reported to be later.
            is_stuck = not rows and nexts == starts
            starts = {key: offset for key, offset in nexts.items() if offset < ends.get(key, 0)}
            if not starts or is_stuck:
                return

    def _last(self, ends: Mapping[str, int], count: int) -> list[Json]:
        found: list[Json] = []
        for key, end in ends.items():
            partition = _QueueLog(self.session, self.queue, int(key))
            back = count
            while True:
                start = max(0, end - back)
                rows = deque(partition._between({key: start}, {key: end}), maxlen=count)
                if len(rows) == count or start == 0:
                    break
                back *= 8  # few steps even if deletions far outnumber messages
            found.extend(rows)
        found.sort(key=lambda row: (row["appended_at_ms"], row["partition"], row["offset"]))
        return found[-count:]
