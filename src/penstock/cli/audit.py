"""``penstock audit``: reads the audit topic ``__audit`` through the Kafka protocol."""

from typing import Any

import click

from penstock.cli import quantity
from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import moment
from penstock.cli.session import Noun, Session, pass_session

_TOPIC = "__audit"
_DAY_S = 86_400


@click.group(cls=Noun)
def audit() -> None:
    """The audit trail: who did what, and when."""


@audit.command()
@click.option("--action", metavar="NAME", help="only this action, such as DeleteQueue")
@click.option("--user", metavar="NAME", help="only what this user did")
@click.option(
    "--since",
    type=quantity.seconds(1, 3_660 * _DAY_S),
    metavar="DURATION",
    help="how far back, such as 1d [default: 1d; with --follow: from now on]",
)
@click.option("--follow", is_flag=True, help="wait for more until Ctrl-C")
@click.option("-n", "--count", type=click.IntRange(min=1), help="number of entries to stop after")
@pass_session
def tail(
    session: Session,
    action: str | None,
    user: str | None,
    since: int | None,
    follow: bool,
    count: int | None,
) -> None:
    """Show who did what, oldest first."""
    from penstock.cli.tailing import Reader, TailWish
    from penstock.wire.facts.audit import AuditUnreadable, decode

    origin = "latest" if follow and since is None else f"-{since or _DAY_S}s"
    reader = _reader(session, Reader, TailWish(origin=origin, is_following=follow))
    shown = 0
    for found in reader.answers():
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
        session.out.line("no such entries in this time")


def _reader(session: Session, reader: Any, wish: Any) -> Any:
    try:
        return reader(session, _TOPIC, wish)
    except Failure as failure:
        if failure.exit_code is not ExitCode.NOT_FOUND:
            raise
        raise Failure(
            "there is no audit trail",
            f"the server has no topic {_TOPIC}, or you may not read it",
            "set audit.enabled = true and restart the server; operators may read the trail",
            exit_code=ExitCode.NOT_FOUND,
        ) from None


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
