"""``penstock usage``: sums the usage of tenants from the topic ``__usage``.

Every node writes its counts there every few seconds; a record that was written twice counts once. A
report has only what is written: it lacks the last seconds of a busy node."""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

import click

from penstock.cli.command import Noun, Session
from penstock.cli.messages.peeking import TailRequest
from penstock.cli.messages.topic_tail import Reader
from penstock.cli.terminal.failure import NotFound
from penstock.cli.terminal.output import Column, columns
from penstock.cli.topics.offsets import Target, time_of
from penstock.model.units import size
from penstock.net.kafka_client.client import EARLIEST
from penstock.wire.facts.usage import UsageFacts, UsageRow, UsageUnreadable, decode

_TOPIC = "__usage"
_MINUTES_PER_HOUR = 60
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
    """Report the usage of tenants: requests, messages, bytes."""


_COLUMNS = (
    *columns("tenant, region, resource, op OPERATION, requests#, messages#"),
    Column("bytes_in", "IN", is_number=True, form=size),
    Column("bytes_out", "OUT", is_number=True, form=size),
    *columns("throttled#, denied#, failed#, byte_hours# BYTE-HOURS"),
)
_CSV_COLUMNS = ("tenant", "region", "resource", "op", *_SUMS, "stored_bytes", "byte_hours")


@usage.command()
@click.option("--tenant", metavar="ACCOUNT", help="AWS account id, 12 digits [default: all]")
@click.option("--from", "since", metavar="TIME", help="start of the report [default: all]")
@click.option("--to", "until", metavar="TIME", help="end of the report, exclusive [default: now]")
@click.option("--csv", "is_csv", is_flag=True, help="print CSV with a header line")
def report(
    session: Session, tenant: str | None, since: str | None, until: str | None, is_csv: bool
) -> None:
    """Sum the usage by tenant, queue or topic, and operation.

    TIME is like 2026-01-31T12:00:00Z, or -90m for 90 minutes ago. Operations have the names of
    policy actions; `storage` is the stored bytes, summed over time as BYTE-HOURS. The resource `-`
    means no resource; `*` means resources that were too many to be counted separately.
    """
    since_ms = time_of(since, what="cannot report", option="--from")
    until_ms = time_of(until, what="cannot report", option="--to")
    totals = _Totals(tenant=tenant, since_ms=since_ms, until_ms=until_ms)
    for facts in _facts(session, since_ms):
        totals.add(facts)
    rows = totals.rows()
    if is_csv:
        _print_csv(session, rows)
        return
    session.out.many(rows, columns=_COLUMNS, name="resource", empty="no usage in this time")


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
    origin = Target(time=EARLIEST if since_ms is None else since_ms)
    missing = NotFound(
        "no usage to report",
        f"the server has no topic {_TOPIC}",
        "set usage.enabled = true and restart the server; counts appear after some seconds",
    )
    reader = Reader.of_internal(session, _TOPIC, TailRequest(origin, is_following=False), missing)
    unread = 0
    for found in reader.fetches():
        for _, record in found:
            try:
                yield decode(record.value or b"")
            except UsageUnreadable:
                unread += 1
    if unread:
        session.remark(
            f"{unread} records could not be read: this command may be older than the server"
        )
