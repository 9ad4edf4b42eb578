"""The verbs of ``penstock cluster`` that request a change and do not wait for it. The manager of
the cluster makes the change; ``penstock cluster status`` shows the progress."""

from typing import Any

import click

from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column
from penstock.cli.session import Session, Verb, pass_session
from penstock.model.units import counted

LATEST = "latest"
_DRAIN_COLUMNS = (
    Column("node", "node", form=str),
    Column("is_draining", "draining"),
    Column("replicas", "partitions"),
    Column("leaders", "of these led"),
    Column("stuck", "without another node"),
)


@click.command(cls=Verb)
@click.argument("node", metavar="NODE", type=click.IntRange(1))
@pass_session
def drain(session: Session, node: int) -> None:
    """Move everything off a node.

    As far as there are others to take it. The node goes on serving clients.
    """
    told = session.admin.call(
        "POST", f"cluster/nodes/{node}/drain", body={}, what=f"cannot drain node {node}"
    )
    session.out.one(told, columns=_DRAIN_COLUMNS, name="node")
    if told["stuck"]:
        stuck = counted(told["stuck"], "partition")
        session.remark(f"{stuck} will stay, for there is no other node; nothing leads there")
    else:
        session.remark("follow it with `penstock cluster status`")


@click.command(cls=Verb)
@click.argument("node", metavar="NODE", type=click.IntRange(1))
@pass_session
def undrain(session: Session, node: int) -> None:
    """Let a drained node have partitions again."""
    told = session.admin.call(
        "POST", f"cluster/nodes/{node}/undrain", body={}, what=f"cannot undrain node {node}"
    )
    session.out.one(told, columns=_DRAIN_COLUMNS, name="node")


@click.command(cls=Verb)
@pass_session
def rebalance(session: Session) -> None:
    """Let first replicas lead again, at once."""
    told = session.admin.call("POST", "cluster/rebalance", body={}, what="cannot rebalance")
    columns = (Column("leaders_changed", "leaders changed"),)
    session.out.one(told, columns=columns, name="leaders_changed")


@click.command(cls=Verb)
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, type=click.IntRange(1))
@pass_session
def place(session: Session, topic: str, partition: int, nodes: tuple[int, ...]) -> None:
    """Move a partition to these nodes.

    The first of them leads it.
    """
    told = session.admin.call(
        "POST",
        "cluster/place",
        body={**_named(session, topic), "partition": partition, "replicas": nodes},
        what=f"cannot place partition {partition} of '{topic}'",
    )
    session.out.one(told, name="partition")


class _Level(click.ParamType[int | str]):
    name = "latest|N"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        text = str(value)
        if text != LATEST and not (text.isascii() and text.isdigit() and 0 < int(text) < 10**6):
            self.fail(f"'{text}' is neither a level nor {LATEST}", param, ctx)
        return text if text == LATEST else int(text)


@click.command(cls=Verb)
@click.option("--to", type=_Level(), default=LATEST, help="feature level [default: latest]")
@click.option("--dry-run", is_flag=True, help="only say whether it could be done")
@pass_session
def upgrade(session: Session, to: int | str, dry_run: bool) -> None:
    """Raise the feature level, once all nodes run a new version.

    latest is the highest that all nodes speak. There is no way back: nodes of a version that does
    not speak the new level cannot start any more.
    """
    body = {"dry_run": dry_run, **({} if to == LATEST else {"to": to})}
    told = session.admin.call(
        "POST", "cluster/upgrade", body=body, what="cannot raise the feature level"
    )
    if session.out.is_table:
        session.out.line(_said(told))
        for line in told["obstacles"]:
            session.out.line(f"  - {line}")
    else:
        session.out.one(told, name="to")
    if told["obstacles"]:
        raise click.exceptions.Exit(ExitCode.CONFLICT)  # the same exit code as without --dry-run
    if not told["is_done"] and not dry_run:
        raise click.exceptions.Exit(ExitCode.TIMEOUT)


def _said(told: dict[str, Any]) -> str:
    before, after = told["level"], told["to"]
    if before == after:
        return f"the cluster is at feature level {before}: there is nothing to raise"
    if told["obstacles"]:
        return f"the feature level could not be raised from {before} to {after}"
    if told["is_dry_run"]:
        return f"the feature level could be raised from {before} to {after}"
    if told["is_done"]:
        return f"the feature level was raised from {before} to {after}"
    return f"the feature level will be raised from {before} to {after} by whoever manages"


@click.command("unclean-elect", cls=Verb)
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.argument("node", metavar="NODE", type=click.IntRange(1))
@click.option("--yes-lose-data", is_flag=True, help="what NODE does not have is lost for good")
@pass_session
def unclean_elect(
    session: Session, topic: str, partition: int, node: int, yes_lose_data: bool
) -> None:
    """Let a node lead that may lack messages.

    For when all that had everything are gone for good. Messages that were answered may be lost, and
    deleted ones may come back.
    """
    what = f"did not elect node {node} for partition {partition} of '{topic}'"
    if not yes_lose_data:
        raise Failure(
            what,
            f"whatever node {node} does not have of it would be lost for good",
            "bring the other replicas back, or add --yes-lose-data when they are gone for good",
            exit_code=ExitCode.USAGE,
        )
    told = session.admin.call(
        "POST",
        "cluster/unclean-elect",
        body={
            **_named(session, topic),
            "partition": partition,
            "node": node,
            "accept_data_loss": True,
        },
        what=what,
    )
    session.out.one(told, name="partition")


def _named(session: Session, topic: str) -> dict[str, Any]:
    settings = session.settings
    account = {"account": settings.account} if settings.account else {}
    return {"topic": topic, "region": settings.region, **account}
