"""``penstock coordinator``: the logs of coordinators of consumer groups and transactions. A
coordinator that cannot read a row of its log is out of service until an operator skips the row."""

from urllib.parse import quote

import click

from penstock.cli.clients.http import Json
from penstock.cli.command import Noun, Session
from penstock.cli.terminal.output import Column, Row, columns

_LOG_COLUMNS = columns(
    "topic topic, partition partition, start_offset first offset, end_offset end offset,"
    " skipped_offsets skipped offsets, state state",
    partition=str,
    start_offset=str,
    end_offset=str,
)
_ROW_COLUMNS = (
    *columns("offset offset, reason unreadable because", offset=str, reason=lambda one: one or "-"),
    Column("key_bytes", "key bytes", form=str),
    Column("key", "key, in hex"),
    Column("value_bytes", "value bytes", form=str),
    Column("value", "value, in hex"),
    Column("digest", "digest"),
)
_partition_argument = click.argument("partition", type=click.IntRange(0))
_OFFSETS = click.IntRange(0, 2**63 - 1)


@click.group(cls=Noun)
def coordinator() -> None:
    """Show and skip an unreadable row in a coordinator log (__groups, __transactions)."""


@coordinator.command()
@_partition_argument
@click.argument("offset", type=_OFFSETS, required=False)
def show(session: Session, topic: str, partition: int, offset: int | None) -> None:
    """Show the first unreadable row of a partition, or the row at OFFSET."""
    path, what = _path(topic, partition), f"cannot read {topic}/{partition}"
    found = session.admin.get(path, {"offset": offset}, what=what)
    _print(session, found, found["unreadable"] if offset is None else found["row"])


@coordinator.command()
@_partition_argument
@click.argument("offset", type=_OFFSETS)
def skip(session: Session, topic: str, partition: int, offset: int) -> None:
    """Skip the unreadable row at OFFSET. This cannot be undone.

    The content of the row is lost; all other rows are kept. The coordinator serves requests again
    at once, unless a later row is unreadable too.
    """
    path = f"{_path(topic, partition)}/skip"
    what = f"cannot skip the row at offset {offset} of {topic}/{partition}"
    found = session.admin.call("POST", path, body={"offset": offset}, what=what)
    _print(session, found, found["unreadable"])


def _path(topic: str, partition: int) -> str:
    return f"coordinators/{quote(topic, safe='')}/{partition}"


def _print(session: Session, found: Json, row: Row | None) -> None:
    if not session.out.is_table:
        session.out.one(found, name="topic")
        return
    blocking = found["unreadable"]
    state = "all rows are readable"
    if blocking is not None:
        state = f"out of service: the row at offset {blocking['offset']} is unreadable"
    skipped = ", ".join(str(one["offset"]) for one in found["skipped"]) or "-"
    shown = {**found, "state": state, "skipped_offsets": skipped}
    session.out.one(shown, columns=_LOG_COLUMNS)
    if row is not None:
        session.out.line("")
        session.out.one(row, columns=_ROW_COLUMNS)
