"""Commands of ``penstock cluster`` that change the cluster through its manager node.

``decommission`` and ``wait-safe`` repeat a request until a node can be stopped; ``--timeout``
limits the whole wait. A request without a reply is retried: the serving node may be restarting."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from penstock.cli.cluster.status import cluster
from penstock.cli.command import Session
from penstock.cli.terminal.failure import PASSING, ExitCode, Failure, Misuse
from penstock.cli.terminal.options import Parsed
from penstock.cli.terminal.output import Json, columns, is_drawing, progress_bar
from penstock.model.units import counted

SAFE_S_DEFAULT = 300.0
POLL_EVERY_S = 0.5
PRINT_EVERY_S = 5.0  # interval of messages where there is no progress bar
LATEST = "latest"
_DRAIN_COLUMNS = columns(
    "node node, is_draining draining, replicas partitions, leaders of these led, "
    "stuck without another node",
    node=str,
)
_node_argument = click.argument("node", metavar="NODE", type=click.IntRange(1))


def _post(session: Session, path: str, body: Mapping[str, Any] = {}, *, what: str) -> Json:
    return session.admin.call("POST", f"cluster/{path}", body=dict(body), what=what)


def _named(session: Session, topic: str) -> Json:
    settings = session.settings
    account = {"account": settings.account} if settings.account else {}
    return {"topic": topic, "region": settings.region, **account}


@cluster.command()
@_node_argument
def drain(session: Session, node: int) -> None:
    """Move all partitions from a node to other nodes, as far as other nodes can hold them.

    The command does not wait for the moves. The node continues to serve clients."""
    reply = _post(session, f"nodes/{node}/drain", what=f"cannot drain node {node}")
    session.out.one(reply, columns=_DRAIN_COLUMNS, name="node")
    if reply["stuck"]:
        stuck = counted(reply["stuck"], "partition")
        session.remark(f"{stuck} cannot move: no other node is available")
    else:
        session.remark("show the progress with `penstock cluster status`")


@cluster.command()
@_node_argument
def undrain(session: Session, node: int) -> None:
    """End the drain of a node: the node may hold partitions again."""
    reply = _post(session, f"nodes/{node}/undrain", what=f"cannot undrain node {node}")
    session.out.one(reply, columns=_DRAIN_COLUMNS, name="node")


@cluster.command()
@_node_argument
def decommission(session: Session, node: int) -> None:
    """Prepare to remove a node: move its partitions to other nodes and wait until it has none.

    Ctrl-C ends only the wait. Stop the moves with `penstock cluster undrain`."""
    what = f"cannot decommission node {node}"
    total = int(_post(session, f"nodes/{node}/decommission", what=what)["replicas"])

    def left(found: Json) -> str | None:
        nonlocal total
        count = sum(one["replicas"] for one in found["nodes"] if one["node"] == node)
        total = max(total, count)
        update(total - count, total)
        return f"{counted(count, 'partition')} still on node {node}" if count else None

    is_quiet = session.settings.quiet
    try:
        with progress_bar(f"emptying node {node}", total=total, is_quiet=is_quiet) as update:
            if total:
                _wait(
                    session,
                    lambda used: used.admin.get("cluster", what="cannot read the cluster status"),
                    left,
                    what=f"node {node} is not empty yet",
                    seconds_default=None,
                    is_silent=is_drawing(sys.stderr),  # the progress bar shows it
                )
    except (KeyboardInterrupt, Failure):
        session.remark(
            f"node {node} is still being emptied; run this again to continue waiting, or"
            f" `penstock cluster undrain {node}` to keep the node"
        )
        raise
    lines = [f"node {node} is empty: stop it for good"]
    lines.append("do not reuse its number for another machine")
    session.out.one({"node": node, "replicas": 0, "is_empty": True}, name="node", lines=lines)


def _wait(
    session: Session,
    request: Callable[[Session], Json],
    obstacle: Callable[[Json], str | None],
    *,
    what: str,
    seconds_default: float | None,
    is_silent: bool = False,
) -> Json:
    """Repeat a request until ``obstacle(reply)``, the reason to wait longer, is None."""
    is_given = "timeout_s" in session.settings.explicit
    limit_s = session.settings.timeout_s if is_given else seconds_default
    began_s = time.monotonic()
    printed, printed_s = "", float("-inf")
    used = session
    try:
        while True:
            try:
                reply = request(used)
                why = obstacle(reply)
                if why is None:
                    return reply
            except Failure as error:
                if error.exit_code not in PASSING:
                    raise
                why = f"{error.what}: {error.why}"
                # Use a new session, because a restarted node may have another admin address.
                if used is not session:
                    used.close()
                used = Session(session.settings)
            now_s = time.monotonic()
            if why != printed and now_s - printed_s >= PRINT_EVERY_S and not is_silent:
                session.remark(f"waiting: {why}")
                printed, printed_s = why, now_s
            if limit_s is not None and now_s - began_s >= limit_s:
                fix = "see `penstock cluster status`, or wait longer with --timeout SECONDS"
                raise Failure(what, why, fix, exit_code=ExitCode.TIMEOUT)
            time.sleep(POLL_EVERY_S)
    finally:
        if used is not session:
            used.close()


@cluster.command()
def rebalance(session: Session) -> None:
    """Make the preferred leader (the first replica) of each partition its leader again."""
    reply = _post(session, "rebalance", what="cannot rebalance")
    shown = columns("leaders_changed leaders changed")
    session.out.one(reply, columns=shown, name="leaders_changed")


@cluster.command("wait-safe")
@click.option(
    "--node",
    type=click.IntRange(1),
    help="node that you want to stop [default: check every node]",
)
def wait_safe(session: Session, node: int | None) -> None:
    """Wait until a node can be stopped and every replicated partition still accepts writes.

    Use it in rolling restarts, before you stop each node. The default --timeout is 300 seconds."""
    stopped = "any one node" if node is None else f"node {node}"
    began_s = time.monotonic()
    found = _wait(
        session,
        lambda used: _safety(used, node),
        lambda reply: None if reply["is_safe"] else _dangers(reply),
        what=f"it is not safe to stop {stopped}",
        seconds_default=SAFE_S_DEFAULT,
    )
    waited_s = round(time.monotonic() - began_s, 1)
    only_here = sum(risk["only_here"] for risk in found["nodes"])
    if only_here:
        kept = counted(only_here, "partition")
        session.remark(f"{kept} with only one replica will be unavailable during the stop")
    lines = [f"safe: {stopped} can be stopped"]
    session.out.one({"node": node, "waited_s": waited_s, **found}, lines=lines)


def _safety(session: Session, node: int | None) -> Json:
    what = "cannot check whether a node can be stopped"
    try:
        return session.admin.get("cluster/safety", {"node": node}, what=what)
    except Failure as error:
        if error.exit_code is not ExitCode.NOT_FOUND or node is None:
            raise
        # The node may be restarting; for a node that never existed the wait ends by timeout.
        raise Failure(error.what, error.why, exit_code=ExitCode.UNREACHABLE) from None


def _dangers(safety: Json) -> str:
    words = {
        "leaderless": "without a leader",
        "below_minimum": "with too few replicas in sync",
        "missing": "not created yet",
    }
    now = [f"{counted(safety[key], 'partition')} {words[key]}" for key in words if safety[key]]
    then = [
        f"{counted(count, 'partition')} could not be written to without node {risk['node']}"
        for risk in safety["nodes"]
        if (count := risk["unavailable"] + risk["unsendable"])
    ]
    return "; ".join([*now, *then])


@cluster.command()
@click.argument("partition", type=click.IntRange(0))
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, type=click.IntRange(1))
def place(session: Session, topic: str, partition: int, nodes: tuple[int, ...]) -> None:
    """Move a partition to the given nodes. The first node becomes the leader."""
    body = {**_named(session, topic), "partition": partition, "replicas": nodes}
    what = f"cannot place partition {partition} of '{topic}'"
    session.out.one(_post(session, "place", body, what=what), name="partition")


@cluster.command("unclean-elect")
@click.argument("partition", type=click.IntRange(0))
@_node_argument
@click.option("--yes-lose-data", is_flag=True, help="accept the loss of messages that NODE lacks")
def unclean_elect(
    session: Session, topic: str, partition: int, node: int, yes_lose_data: bool
) -> None:
    """Elect a node as leader of a partition although it may lack messages. This can lose data.

    Use this only if all in-sync replicas are lost for good. Acknowledged messages may be lost, and
    deleted messages may come back."""
    what = f"did not elect node {node} as leader of partition {partition} of '{topic}'"
    if not yes_lose_data:
        raise Misuse(
            what,
            f"messages that node {node} does not have would be lost",
            "restart the other replicas, or add --yes-lose-data if they are lost for good",
        )
    body = {**_named(session, topic), "partition": partition, "node": node}
    reply = _post(session, "unclean-elect", {**body, "accept_data_loss": True}, what=what)
    session.out.one(reply, name="partition")


def _level(text: str) -> int | str:
    if text != LATEST and not (text.isascii() and text.isdigit() and 0 < int(text) < 10**6):
        raise ValueError(f"'{text}' is not a feature level: use {LATEST} or a number >= 1")
    return text if text == LATEST else int(text)


_LEVEL = Parsed("latest|N", _level)


@cluster.command()
@click.option("--to", type=_LEVEL, default=LATEST, help="new feature level [default: latest]")
@click.option("--dry-run", is_flag=True, help="only check whether the upgrade is possible")
def upgrade(session: Session, to: int | str, dry_run: bool) -> None:
    """Raise the feature level of the cluster, once all nodes run the new version.

    `latest` is the highest level that all nodes support. The level cannot be lowered: nodes of a
    version that does not support the new level can no longer start."""
    body = {"dry_run": dry_run, **({} if to == LATEST else {"to": to})}
    reply = _post(session, "upgrade", body, what="cannot raise the feature level")
    lines = [_sentence(reply), *(f"  - {line}" for line in reply["obstacles"])]
    session.out.one(reply, name="to", lines=lines)
    if reply["obstacles"]:
        raise click.exceptions.Exit(ExitCode.CONFLICT)  # the same exit code as without --dry-run
    if not reply["is_done"] and not dry_run:
        raise click.exceptions.Exit(ExitCode.TIMEOUT)


def _sentence(reply: Json) -> str:
    before, after = reply["level"], reply["to"]
    if before == after:
        return f"the cluster is at feature level {before}: nothing to raise"
    change = f"raised from {before} to {after}"
    if reply["obstacles"]:
        return f"the feature level could not be {change}"
    if reply["is_dry_run"]:
        return f"the feature level could be {change}"
    if reply["is_done"]:
        return f"the feature level was {change}"
    return f"the feature level will be {change} by the manager"
