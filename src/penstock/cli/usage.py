"""``penstock usage``: sums the usage of tenants from the topic ``__usage``.

Every node writes its counts there every few seconds; a record that was written twice counts once. A
report has only what is written: it lacks the last seconds of a busy node."""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column
from penstock.cli.session import Noun, Session, pass_session
from penstock.model.units import size

if TYPE_CHECKING:
    from penstock.cli.kafka_client import Kafka, Place
    from penstock.wire.facts.usage import UsageFacts, UsageRow

_TOPIC = "__usage"
_FETCH = 1
_BY_NAME_MAX = 12  # later versions name topics by id
_FETCH_BYTES = 4 * 1_048_576
_MINUTES_PER_HOUR = 60
_WHAT = "cannot read usage"
_SUMS = (
    "requests",
    "messages",
    "bytes_in",
    "bytes_out",
    "units64k",
    "throttled",
    "denied",
    "failed",
)


@click.group(cls=Noun)
def usage() -> None:
    """See what tenants have used: requests, messages, bytes."""


_COLUMNS = (
    Column("tenant", "TENANT"),
    Column("region", "REGION"),
    Column("resource", "RESOURCE"),
    Column("op", "OPERATION"),
    Column("requests", "REQUESTS", is_number=True),
    Column("messages", "MESSAGES", is_number=True),
    Column("bytes_in", "IN", is_number=True, form=size),
    Column("bytes_out", "OUT", is_number=True, form=size),
    Column("throttled", "THROTTLED", is_number=True),
    Column("denied", "DENIED", is_number=True),
    Column("failed", "FAILED", is_number=True),
    Column("byte_hours", "BYTE-HOURS", is_number=True),
)
_CSV_COLUMNS = ("tenant", "region", "resource", "op", *_SUMS, "stored_bytes", "byte_hours")


@usage.command()
@click.option("--tenant", metavar="ACCOUNT", help="only this account, twelve digits")
@click.option(
    "--from", "since", metavar="TIME", help="minutes that begin at TIME or later [default: all]"
)
@click.option("--to", "until", metavar="TIME", help="minutes that begin before TIME [default: now]")
@click.option("--csv", "is_csv", is_flag=True, help="comma-separated values with a head line")
@pass_session
def report(
    session: Session, tenant: str | None, since: str | None, until: str | None, is_csv: bool
) -> None:
    """Add up usage by tenant, queue or topic, and operation.

    TIME is like 2026-01-31T12:00:00Z, or -90m for so long ago. An operation is named as policies
    name it; `storage` is what a queue held: BYTE-HOURS adds it up over time. A resource of `-` is
    none in particular, `*` are those that were too many to be told apart.
    """
    import time

    now_ms = int(time.time() * 1_000)
    since_ms = _moment(since, now_ms, option="--from")
    until_ms = _moment(until, now_ms, option="--to")
    totals = _Totals(tenant=tenant, since_ms=since_ms, until_ms=until_ms)
    for facts in _facts(session, since_ms):
        totals.add(facts)
    rows = totals.rows()
    if is_csv:
        _print_csv(session, rows)
        return
    session.out.many(rows, columns=_COLUMNS, name="resource", empty="no usage in this time")


def _moment(text: str | None, now_ms: int, *, option: str) -> int | None:
    from penstock.cli.kafka_client import EARLIEST, LATEST
    from penstock.cli.log_place import target_of

    if text is None:
        return None
    target = target_of(text, now_ms, what="cannot report", option=option)
    if target.time is None:
        raise Failure(
            f"cannot report {option} '{text}'",
            "that is a place in a log and not a time",
            "write a time like 2026-01-31T12:00:00Z, or -90m for so long ago",
            exit_code=ExitCode.USAGE,
        )
    return None if target.time in (EARLIEST, LATEST) else target.time


class _Totals:
    def __init__(self, *, tenant: str | None, since_ms: int | None, until_ms: int | None) -> None:
        self._tenant = tenant
        self._since_ms = since_ms
        self._until_ms = until_ms
        self._rows: dict[tuple[str, ...], dict[str, Any]] = {}
        self._seen: set[tuple[str, str, int]] = set()
        self._stored_ms: dict[tuple[str, ...], int] = {}  # the minute of the stored bytes

    def add(self, facts: "UsageFacts") -> None:
        if facts.name in self._seen:
            return
        self._seen.add(facts.name)
        if self._since_ms is not None and facts.minute_ms < self._since_ms:
            return
        if self._until_ms is not None and facts.minute_ms >= self._until_ms:
            return
        for row in facts.columns.rows():
            if self._tenant is None or row.tenant == self._tenant:
                self._add(row, facts.minute_ms)

    def _add(self, row: "UsageRow", minute_ms: int) -> None:
        key = (row.tenant, row.region, row.resource, row.op)
        total = self._rows.get(key)
        if total is None:
            total = self._rows[key] = dict(
                zip(
                    ("tenant", "region", "resource", "op"),
                    (each or "-" for each in key),
                    strict=True,
                )
            )
            total |= dict.fromkeys((*_SUMS, "stored_bytes", "byte_hours"), 0)
        for name in _SUMS:
            total[name] += getattr(row, name)
        if row.stored_bytes:
            # The last minute counts: each node reports the partitions that it led in that minute.
            if minute_ms > self._stored_ms.get(key, -1):
                self._stored_ms[key] = minute_ms
                total["stored_bytes"] = 0
            if minute_ms == self._stored_ms[key]:
                total["stored_bytes"] += row.stored_bytes
            total["byte_hours"] += row.stored_bytes / _MINUTES_PER_HOUR

    def rows(self) -> list[dict[str, Any]]:
        for row in self._rows.values():
            row["byte_hours"] = round(row["byte_hours"])
        return [self._rows[key] for key in sorted(self._rows)]


def _print_csv(session: Session, rows: Sequence[dict[str, Any]]) -> None:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    writer.writerows([row[name] for name in _CSV_COLUMNS] for row in rows)
    session.out.line(buffer.getvalue().rstrip("\n"))


# ── Reading the topic ────────────────────────────────────────────────────────────────────────


def _facts(session: Session, since_ms: int | None) -> Iterator["UsageFacts"]:
    """Yield all facts written since a time; facts are written after their minute has begun."""
    from penstock.wire.facts.usage import UsageUnreadable, decode

    unread = 0
    for value in _values(session.kafka, since_ms):
        try:
            yield decode(value)
        except UsageUnreadable:
            unread += 1
    if unread:
        session.remark(
            f"{unread} records could not be read: is this command older than the server?"
        )


def _values(kafka: "Kafka", since_ms: int | None) -> Iterator[bytes]:
    from penstock.cli.kafka_client import EARLIEST, LATEST

    try:
        places = kafka.places(_TOPIC, what=_WHAT)
    except Failure as failure:
        if failure.exit_code is not ExitCode.NOT_FOUND:
            raise
        raise Failure(
            "no usage to report",
            f"the server has no topic {_TOPIC}",
            "it counts with usage.enabled = true, and writes after some seconds",
            exit_code=ExitCode.NOT_FOUND,
        ) from None
    ends = kafka.offsets(dict.fromkeys(places, LATEST), what=_WHAT)
    begin = EARLIEST if since_ms is None else since_ms
    starts = kafka.offsets(dict.fromkeys(places, begin), what=_WHAT)
    for place in places:
        at = starts[place]
        while 0 <= at < ends[place]:
            found, behind = _values_in(_fetched(kafka, place, at), at)
            yield from found
            if behind == at:
                break  # records up to the end were removed meanwhile
            at = behind


def _fetched(kafka: "Kafka", place: "Place", offset: int) -> bytes:
    from penstock.cli.kafka_client import check
    from penstock.wire.kafka.fetch_request import FetchPartition, FetchRequest, FetchTopic
    from penstock.wire.kafka.primitives import ZERO_UUID

    wanted = [FetchPartition(place.partition, offset, _FETCH_BYTES)]
    request = FetchRequest(
        wait_ms_max=0,
        bytes_min=0,
        topics=[FetchTopic(place.topic, ZERO_UUID, wanted)],
        bytes_max=_FETCH_BYTES,
        isolation_level=0,
    )
    (reply,) = kafka.at_leaders(
        _FETCH, [place], lambda _: request, what=_WHAT, version_max=_BY_NAME_MAX
    )
    check(_WHAT, reply.error_code)
    (part,) = reply.topics[0].partitions
    check(_WHAT, part.error_code)
    return b"".join(part.records)


def _values_in(data: bytes, offset: int) -> tuple[list[bytes], int]:
    """Return the values from an offset on, and the offset after them."""
    from penstock.record.batch import parse_header, split_batches
    from penstock.record.malformed import MalformedBatch
    from penstock.record.record import iter_records

    found: list[bytes] = []
    behind = offset
    try:
        for batch in split_batches([data]):
            header = parse_header(batch)
            if not header.is_control:
                found += [r.value or b"" for r in iter_records(batch) if r.offset >= offset]
            behind = header.next_offset
    except MalformedBatch as error:
        raise Failure(
            _WHAT, f"a batch cannot be read: {error}", exit_code=ExitCode.UNHEALTHY
        ) from None
    return found, behind
