"""The verbs of ``penstock cluster`` that request a change and do not wait for it. The manager of
the cluster makes the change; ``penstock cluster status`` shows the progress."""

from collections.abc import Mapping
from typing import Any

import click

from penstock.cli.command import Session, Verb
from penstock.cli.terminal.failure import ExitCode, Misuse
from penstock.cli.terminal.output import Column, columns
from penstock.model.units import counted

LATEST = "latest"
_DRAIN_COLUMNS = (
    Column("node", "node", form=str),
    *columns(
        "is_draining draining, replicas partitions, leaders of these led, "
        "stuck without another node"
    ),
)


@click.command(cls=Verb)
@click.argument("node", metavar="NODE", type=click.IntRange(1))
def drain(session: Session, node: int) -> None:
    """Move all partitions from a node to other nodes, as far as other nodes can hold them.

    The command does not wait for the moves. The node continues to serve clients.
    """
    reply = _post(session, f"nodes/{node}/drain", what=f"cannot drain node {node}")
    session.out.one(reply, columns=_DRAIN_COLUMNS, name="node")
    if reply["stuck"]:
        stuck = counted(reply["stuck"], "partition")
        session.remark(f"{stuck} cannot move: no other node is available")
    else:
        session.remark("show the progress with `penstock cluster status`")


@click.command(cls=Verb)
@click.argument("node", metavar="NODE", type=click.IntRange(1))
def undrain(session: Session, node: int) -> None:
    """End the drain of a node: the node may hold partitions again."""
    reply = _post(session, f"nodes/{node}/undrain", what=f"cannot undrain node {node}")
    session.out.one(reply, columns=_DRAIN_COLUMNS, name="node")


@click.command(cls=Verb)
def rebalance(session: Session) -> None:
    """Make the first replica of each partition its leader again."""
    reply = _post(session, "rebalance", what="cannot rebalance")
    shown = columns("leaders_changed leaders changed")
    session.out.one(reply, columns=shown, name="leaders_changed")


@click.command(cls=Verb)
@click.argument("partition", type=click.IntRange(0))
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, type=click.IntRange(1))
def place(session: Session, topic: str, partition: int, nodes: tuple[int, ...]) -> None:
    """Move a partition to the given nodes. The first node becomes the leader."""
    body = {**_named(session, topic), "partition": partition, "replicas": nodes}
    what = f"cannot place partition {partition} of '{topic}'"
    reply = _post(session, "place", body, what=what)
    session.out.one(reply, name="partition")


class _Level(click.ParamType[int | str]):
    name = "latest|N"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        text = str(value)
        if text != LATEST and not (text.isascii() and text.isdigit() and 0 < int(text) < 10**6):
            self.fail(f"'{text}' is not a feature level: a number from 1, or {LATEST}", param, ctx)
        return text if text == LATEST else int(text)


@click.command(cls=Verb)
@click.option("--to", type=_Level(), default=LATEST, help="feature level [default: latest]")
@click.option("--dry-run", is_flag=True, help="check whether it is possible, change nothing")
def upgrade(session: Session, to: int | str, dry_run: bool) -> None:
    """Raise the feature level of the cluster, after all nodes run a new version.

    `latest` is the highest level that all nodes support. The level cannot be lowered: nodes of a
    version that does not support the new level cannot start any more.
    """
    body = {"dry_run": dry_run, **({} if to == LATEST else {"to": to})}
    reply = _post(session, "upgrade", body, what="cannot raise the feature level")
    if session.out.is_table:
        session.out.line(_sentence(reply))
        for line in reply["obstacles"]:
            session.out.line(f"  - {line}")
    else:
        session.out.one(reply, name="to")
    if reply["obstacles"]:
        raise click.exceptions.Exit(ExitCode.CONFLICT)  # the same exit code as without --dry-run
    if not reply["is_done"] and not dry_run:
        raise click.exceptions.Exit(ExitCode.TIMEOUT)


def _sentence(reply: dict[str, Any]) -> str:
    before, after = reply["level"], reply["to"]
    if before == after:
        return f"the cluster is at feature level {before}: nothing to raise"
    if reply["obstacles"]:
        return f"the feature level could not be raised from {before} to {after}"
    if reply["is_dry_run"]:
        return f"the feature level could be raised from {before} to {after}"
    if reply["is_done"]:
        return f"the feature level was raised from {before} to {after}"
    return f"the feature level will be raised from {before} to {after} by the manager"


@click.command("unclean-elect", cls=Verb)
@click.argument("partition", type=click.IntRange(0))
@click.argument("node", metavar="NODE", type=click.IntRange(1))
@click.option("--yes-lose-data", is_flag=True, help="confirm that messages not on NODE are lost")
def unclean_elect(
    session: Session, topic: str, partition: int, node: int, yes_lose_data: bool
) -> None:
    """Elect a node as leader of a partition although it may lack messages (data loss).

    Use it only if all in-sync replicas are lost for good. Acknowledged messages may be lost, and
    deleted messages may come back.
    """
    what = f"did not elect node {node} for partition {partition} of '{topic}'"
    if not yes_lose_data:
        raise Misuse(
            what,
            f"messages that node {node} does not have would be lost",
            "restart the other replicas, or add --yes-lose-data if they are lost for good",
        )
    body = {**_named(session, topic), "partition": partition, "node": node}
    reply = _post(session, "unclean-elect", {**body, "accept_data_loss": True}, what=what)
    session.out.one(reply, name="partition")


def _post(
    session: Session, path: str, body: Mapping[str, Any] = {}, *, what: str
) -> dict[str, Any]:
    return session.admin.call("POST", f"cluster/{path}", body=dict(body), what=what)


def _named(session: Session, topic: str) -> dict[str, Any]:
    settings = session.settings
    account = {"account": settings.account} if settings.account else {}
    return {"topic": topic, "region": settings.region, **account}
