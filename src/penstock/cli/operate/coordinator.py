"""``penstock coordinator``: the logs of coordinators of consumer groups and transactions.

A coordinator that cannot read a row of its log is out of service. Skipping the row is an operator's
decision, because the content of the row is lost."""

from urllib.parse import quote

import click

from penstock.cli.clients.http import Json
from penstock.cli.command import Noun, Session
from penstock.cli.terminal.output import Column, Row, columns

_OFFSET_MAX = 2**63 - 1
_LOG_COLUMNS = (
    Column("topic", "topic"),
    Column("partition", "partition", form=str),
    Column("start_offset", "first offset", form=str),
    Column("end_offset", "end offset", form=str),
    *columns("skipped_offsets skipped offsets, state state"),
)
_ROW_COLUMNS = (
    Column("offset", "offset", form=str),
    Column("reason", "unreadable because", form=lambda reason: reason or "-"),
    Column("key_bytes", "key bytes", form=str),
    Column("key", "key, in hex"),
    Column("value_bytes", "value bytes", form=str),
    Column("value", "value, in hex", form=lambda value: "-" if value is None else value),
    Column("digest", "digest"),
)


@click.group(cls=Noun)
def coordinator() -> None:
    """Show and skip an unreadable row in a coordinator log (__groups, __transactions)."""


@coordinator.command()
@click.argument("partition", type=click.IntRange(0))
@click.argument("offset", type=click.IntRange(0, _OFFSET_MAX), required=False)
def show(session: Session, topic: str, partition: int, offset: int | None) -> None:
    """Show the first unreadable row of a partition, or the row at OFFSET."""
    found = session.admin.get(
        _path(topic, partition), {"offset": offset}, what=f"cannot read {topic}/{partition}"
    )
    _print(session, found, found["unreadable"] if offset is None else found["row"])


@coordinator.command()
@click.argument("partition", type=click.IntRange(0))
@click.argument("offset", type=click.IntRange(0, _OFFSET_MAX))
def skip(session: Session, topic: str, partition: int, offset: int) -> None:
    """Skip the unreadable row at OFFSET. This cannot be undone.

    The content of the row is lost; all other rows are kept. The coordinator serves requests again
    at once, unless a later row is unreadable too.
    """
    found = session.admin.call(
        "POST",
        f"{_path(topic, partition)}/skip",
        body={"offset": offset},
        what=f"cannot skip the row at offset {offset} of {topic}/{partition}",
    )
    _print(session, found, found["unreadable"])


def _path(topic: str, partition: int) -> str:
    return f"coordinators/{quote(topic, safe='')}/{partition}"


def _print(session: Session, found: Json, row: Row | None) -> None:
    if not session.out.is_table:
        session.out.one(found, name="topic")
        return
    blocking = found["unreadable"]
    shown = {
        **found,
        "state": "all rows are readable"
        if blocking is None
        else f"out of service: the row at offset {blocking['offset']} is unreadable",
        "skipped_offsets": ", ".join(str(one["offset"]) for one in found["skipped"]) or "-",
    }
    session.out.one(shown, columns=_LOG_COLUMNS)
    if row is not None:
        session.out.line("")
        session.out.one(row, columns=_ROW_COLUMNS)
