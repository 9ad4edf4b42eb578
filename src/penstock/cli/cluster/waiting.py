"""The verbs of ``penstock cluster`` that wait: until a node may stop, or until a node is empty.

Here ``--timeout`` limits the whole wait. The node that serves the requests may be the one that is
being restarted, so a request without a reply is retried until then."""

import sys
import time
from collections.abc import Callable
from typing import Any

import click

from penstock.cli.cluster.sentences import dangers
from penstock.cli.command import Session, Verb
from penstock.cli.terminal.failure import ExitCode, Failure
from penstock.cli.terminal.output import Progress, is_drawing
from penstock.model.units import counted

SAFE_S_DEFAULT = 300.0
POLL_EVERY_S = 0.5
PRINT_EVERY_S = 5.0  # interval of messages where there is no progress bar
_PASSING = (ExitCode.UNREACHABLE, ExitCode.TIMEOUT)

Json = dict[str, Any]


def _wait(
    session: Session,
    request: Callable[[Session], Json],
    obstacle: Callable[[Json], str | None],
    *,
    what: str,
    seconds_default: float | None,
    is_silent: bool = False,
) -> Json:
    """Repeat a request until its reply has no obstacle, and return the reply. Prints the obstacle
    when it changes. Raises Failure, with ``what``, when the time is up."""
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
                if error.exit_code not in _PASSING:
                    raise
                why = f"{error.what}: {error.why}"
                # With a new session: a restarted node may have its admin API at another address.
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


@click.command("wait-safe", cls=Verb)
@click.option("--node", type=click.IntRange(1), help="node to be stopped [default: any node]")
def wait_safe(session: Session, node: int | None) -> None:
    """Wait until a node can be stopped: until every partition can be written to without it.

    Use it in rolling restarts, before each node is stopped. It waits for at most 300 seconds, or
    --timeout.
    """
    stopped = "any one node" if node is None else f"node {node}"
    began_s = time.monotonic()
    found = _wait(
        session,
        lambda used: _safety(used, node),
        lambda reply: None if reply["is_safe"] else dangers(reply),
        what=f"it is not safe to stop {stopped}",
        seconds_default=SAFE_S_DEFAULT,
    )
    waited_s = round(time.monotonic() - began_s, 1)
    only_here = sum(risk["only_here"] for risk in found["nodes"])
    if only_here:
        kept = counted(only_here, "partition")
        session.remark(f"{kept} have one replica only and will be unavailable during the stop")
    if session.out.is_table:
        session.out.line(f"safe: {stopped} can be stopped")
    else:
        session.out.one({"node": node, "waited_s": waited_s, **found})


def _safety(session: Session, node: int | None) -> Json:
    try:
        return session.admin.get(
            "cluster/safety", {"node": node}, what="cannot check whether a node can be stopped"
        )
    except Failure as error:
        if error.exit_code is not ExitCode.NOT_FOUND or node is None:
            raise
        # The node may be restarting; for a node that never existed the wait ends by timeout.
        raise Failure(error.what, error.why, exit_code=ExitCode.UNREACHABLE) from None


@click.command(cls=Verb)
@click.argument("node", metavar="NODE", type=click.IntRange(1))
def decommission(session: Session, node: int) -> None:
    """Move all partitions from a node for good, and wait until it is empty.

    Ctrl-C ends the wait, not the moves; `penstock cluster undrain` ends the moves."""
    what = f"cannot decommission node {node}"
    reply = session.admin.call("POST", f"cluster/nodes/{node}/decommission", body={}, what=what)
    total = int(reply["replicas"])
    is_quiet = session.settings.quiet

    def left(found: Json) -> str | None:
        nonlocal total
        count = sum(one["replicas"] for one in found["nodes"] if one["node"] == node)
        total = max(total, count)
        progress.update(total - count, total=total)
        return f"{counted(count, 'partition')} still on node {node}" if count else None

    try:
        with Progress(f"emptying node {node}", total=total, is_quiet=is_quiet) as progress:
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
    if session.out.is_table:
        session.out.line(f"node {node} is empty: stop it for good")
        session.out.line("do not reuse its number for another machine")
    else:
        session.out.one({"node": node, "replicas": 0, "is_empty": True}, name="node")
