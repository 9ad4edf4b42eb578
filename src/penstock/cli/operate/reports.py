"""Commands of ``penstock audit`` and ``penstock usage``, which read the topics ``__audit`` and
``__usage``. A usage record that was written twice is counted once. A report may lack the last
seconds, which nodes have not written yet."""

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

import click
import msgspec

from penstock.cli.command import Noun, Session
from penstock.cli.messages.peeking import TailRequest
from penstock.cli.messages.topic_tail import Reader
from penstock.cli.terminal.failure import NotFound
from penstock.cli.terminal.options import count_option, option, seconds
from penstock.cli.terminal.output import columns, moment
from penstock.cli.topics.offsets import Target, time_of
from penstock.model.units import size
from penstock.net.kafka_client.client import EARLIEST
from penstock.wire.facts import audit as audit_facts
from penstock.wire.facts import usage as usage_facts

_AUDIT, _USAGE = "__audit", "__usage"
_DAY_S = 86_400
_MINUTES_PER_HOUR = 60
_NAMES = ("tenant", "region", "resource", "op")
_SUM_NAMES = "requests messages bytes_in bytes_out units64k throttled denied failed"
_SUMS = _SUM_NAMES.split()
_USAGE_COLUMNS = columns(
    "tenant, region, resource, op OPERATION, requests#, messages#, bytes_in# IN, bytes_out# OUT,"
    " throttled#, denied#, failed#, byte_hours# BYTE-HOURS",
    bytes_in=size,
    bytes_out=size,
)
_CSV_COLUMNS = (*_NAMES, *_SUMS, "stored_bytes", "byte_hours")
audit = Noun("audit", help="Show the audit trail: which principal did what, and when.")


@audit.command()
@click.option("--action", metavar="NAME", help="show only this action, such as DeleteQueue")
@click.option("--user", metavar="NAME", help="show only actions of this user")
@option(
    "--since",
    seconds(1, 3_660 * _DAY_S),
    "age of the oldest entry to show, such as 1d [default: 1d; with --follow: now]",
    metavar="DURATION",
)
@click.option("--follow", is_flag=True, help="wait for new entries until Ctrl-C")
@count_option(None, None, "number of entries to stop after")
def tail(
    session: Session,
    action: str | None,
    user: str | None,
    since: int | None,
    follow: bool,
    count: int | None,
) -> None:
    """Print entries of the audit trail, oldest first."""
    origin = "latest" if follow and since is None else f"-{since or _DAY_S}s"
    missing = NotFound(
        "the audit trail was not found",
        f"the server has no topic {_AUDIT}, or you are not allowed to read it",
        "set audit.enabled = true and restart the server, or use the key of an operator",
    )
    reader = Reader.of_internal(session, _AUDIT, TailRequest(origin, is_following=follow), missing)
    shown = 0
    for _, record in (each for found in reader.fetches() for each in found):
        try:
            entry = audit_facts.decode(bytes(record.value or b""))
        except audit_facts.AuditUnreadable as error:
            session.remark(f"the entry at offset {record.offset} cannot be read: {error}")
            continue
        full, name = entry.action.lower(), entry.principal.rpartition("/")[2]
        # Users may write an action with its service (sqs:DeleteQueue) or without.
        is_wanted = action is None or action.lower() in (full, full.rpartition(":")[2])
        if not is_wanted or user not in (None, entry.principal, name):
            continue
        item = {
            key: value
            for key, value in msgspec.structs.asdict(entry).items()
            if key not in ("v", "prev_hash") and value not in ("", {})
        }
        parts = [moment(entry.at_ms), name or "-", entry.action, entry.resource or "-"]
        outcome = f"{entry.outcome} {entry.error_code}".rstrip()
        text = "  ".join([*parts, outcome, entry.source_ip]).rstrip()
        session.out.streamed(item, text=text, name="action")
        shown += 1
        if shown == count:
            return
    if not shown and session.out.is_for_people:
        session.out.line("no matching entries in this period")


usage = Noun("usage", help="Report the usage of tenants: requests, messages, bytes.")


@usage.command()
@click.option("--tenant", metavar="ACCOUNT", help="AWS account id of the tenant [default: all]")
@click.option("--from", "since", metavar="TIME", help="start time [default: oldest usage record]")
@click.option("--to", "until", metavar="TIME", help="end time, exclusive [default: now]")
@click.option("--csv", "is_csv", is_flag=True, help="print CSV with a header line")
def report(
    session: Session, tenant: str | None, since: str | None, until: str | None, is_csv: bool
) -> None:
    """Sum the usage of each tenant by resource (queue or topic) and operation.

    TIME is like 2026-01-31T12:00:00Z, or -90m for 90 minutes ago. Operations are named like policy
    actions; the operation `storage` shows the stored bytes over time as BYTE-HOURS. The resource
    `-` means no resource; `*` means resources that were too many to count separately."""
    since_ms = time_of(since, what="cannot report", option="--from")
    until_ms = time_of(until, what="cannot report", option="--to")
    end_ms = float("inf") if until_ms is None else until_ms
    found = (
        (facts.minute_ms, row)
        for facts in _usage_facts(session, since_ms)
        if (since_ms or 0) <= facts.minute_ms < end_ms
        for row in facts.columns.rows()
        if tenant is None or row.tenant == tenant
    )
    rows = _summed(found)
    if not is_csv:
        empty = "no usage in this period"
        session.out.many(rows, columns=_USAGE_COLUMNS, name="resource", empty=empty)
        return
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    writer.writerows([row[name] for name in _CSV_COLUMNS] for row in rows)
    session.out.line(buffer.getvalue().rstrip("\n"))


def _summed(found: Iterable[tuple[int, usage_facts.UsageRow]]) -> list[dict[str, Any]]:
    """Sum rows by tenant, region, resource and operation. ``found`` has (minute, row) pairs."""
    totals: dict[tuple[str, ...], dict[str, Any]] = {}
    stored_ms: dict[tuple[str, ...], int] = {}  # the minute that stored_bytes is from
    for minute_ms, row in found:
        key = (row.tenant, row.region, row.resource, row.op)
        total = totals.get(key)
        if total is None:
            names = dict(zip(_NAMES, (each or "-" for each in key), strict=True))
            numbers = dict.fromkeys((*_SUMS, "stored_bytes", "byte_hours"), 0)
            total = totals[key] = {**names, **numbers}
        for name in _SUMS:
            total[name] += getattr(row, name)
        if row.stored_bytes:
            # Only the last minute counts: the sum over the nodes that led partitions in it.
            if minute_ms > stored_ms.get(key, -1):
                stored_ms[key] = minute_ms
                total["stored_bytes"] = 0
            if minute_ms == stored_ms[key]:
                total["stored_bytes"] += row.stored_bytes
            total["byte_hours"] += row.stored_bytes / _MINUTES_PER_HOUR
    for total in totals.values():
        total["byte_hours"] = round(total["byte_hours"])
    return [totals[key] for key in sorted(totals)]


def _usage_facts(session: Session, since_ms: int | None) -> Iterator[usage_facts.UsageFacts]:
    request = TailRequest(
        Target(time=EARLIEST if since_ms is None else since_ms), is_following=False
    )
    missing = NotFound(
        "there is no usage to report",
        f"the server has no topic {_USAGE}",
        "set usage.enabled = true and restart the server; counts appear after some seconds",
    )
    seen: set[tuple[str, str, int]] = set()
    unread = 0
    for found in Reader.of_internal(session, _USAGE, request, missing).fetches():
        for _, record in found:
            try:
                facts = usage_facts.decode(record.value or b"")
            except usage_facts.UsageUnreadable:
                unread += 1
                continue
            if facts.name not in seen:
                seen.add(facts.name)
                yield facts
    if unread:
        session.remark(
            f"{unread} records could not be read: this command may be older than the server"
        )
