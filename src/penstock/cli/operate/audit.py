"""``penstock audit``: reads the audit topic ``__audit`` through the Kafka protocol."""

from typing import Any

import click

from penstock.cli.command import Noun, Session
from penstock.cli.messages.peeking import TailRequest
from penstock.cli.messages.topic_tail import Reader
from penstock.cli.terminal import options
from penstock.cli.terminal.failure import NotFound
from penstock.cli.terminal.output import moment
from penstock.wire.facts.audit import AuditUnreadable, decode

_TOPIC = "__audit"
_DAY_S = 86_400


@click.group(cls=Noun)
def audit() -> None:
    """Show the audit trail: which principal did what, and when."""


@audit.command()
@click.option("--action", metavar="NAME", help="action of the entries, such as DeleteQueue")
@click.option("--user", metavar="NAME", help="user of the entries")
@click.option(
    "--since",
    type=options.seconds(1, 3_660 * _DAY_S),
    metavar="DURATION",
    help="start of the entries, such as 1d for a day ago [default: 1d; with --follow: now]",
)
@click.option("--follow", is_flag=True, help="wait for new entries until Ctrl-C")
@click.option("-n", "--count", type=click.IntRange(min=1), help="number of entries to stop after")
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
        "no audit trail found",
        f"the server has no topic {_TOPIC}, or you are not allowed to read it",
        "set audit.enabled = true and restart the server; read it as an operator",
    )
    reader = Reader.of_internal(session, _TOPIC, TailRequest(origin, is_following=follow), missing)
    shown = 0
    for found in reader.fetches():
        for _, record in found:
            try:
                entry = decode(bytes(record.value or b""))
            except AuditUnreadable as error:
                session.remark(f"offset {record.offset} cannot be read: {error}")
                continue
            if _is_wanted(entry, action, user):
                session.out.streamed(_item(entry), text=_text(entry), name="action")
                shown += 1
                if shown == count:
                    return
    if not shown and session.out.is_for_people:
        session.out.line("no matching entries in this time")


def _is_wanted(entry: Any, action: str | None, user: str | None) -> bool:
    """Compare with an action that is given with its service (sqs:DeleteQueue) or without."""
    if action is not None:
        full = entry.action.lower()
        if action.lower() not in (full, full.rpartition(":")[2]):
            return False
    return user is None or user in (entry.principal, _user(entry))


def _user(entry: Any) -> str:
    return str(entry.principal.rpartition("/")[2])


def _item(entry: Any) -> dict[str, Any]:
    import msgspec

    return {
        key: value
        for key, value in msgspec.structs.asdict(entry).items()
        if key not in ("v", "prev_hash") and value not in ("", {})
    }


def _text(entry: Any) -> str:
    parts = [moment(entry.at_ms), _user(entry) or "-", entry.action, entry.resource or "-"]
    outcome = f"{entry.outcome} {entry.error_code}".rstrip()
    return "  ".join([*parts, outcome, entry.source_ip]).rstrip()
