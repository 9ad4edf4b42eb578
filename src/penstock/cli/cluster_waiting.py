"""The verbs of ``penstock cluster`` that wait: until a node may stop, or until a node is empty.

Here ``--timeout`` limits the whole wait. The node that serves the requests may be the one that is
being restarted, so a request without a reply is retried until then."""

import sys
import time
from collections.abc import Callable
from typing import Any

import click

from penstock.cli.cluster_words import dangers
from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import is_drawing
from penstock.cli.progress import Progress
from penstock.cli.session import Session, Verb, pass_session
from penstock.model.units import counted

SAFE_S_DEFAULT = 300.0
ASK_EVERY_S = 0.5
TELL_EVERY_S = 5.0  # interval of messages where there is no progress bar
_AGAIN = (ExitCode.UNREACHABLE, ExitCode.TIMEOUT)


class _Waiting:
    """A loop that repeats a request, and prints what it waits for when that changes."""

    def __init__(self, session: Session, *, seconds_default: float | None) -> None:
        settings = session.settings
        is_given = "timeout_s" in settings.explicit
        self.limit_s = settings.timeout_s if is_given else seconds_default
        self._began_s = time.monotonic()
        self._session = session
        self._asked = session
        self._told = ""
        self._told_s = float("-inf")

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self._began_s

    def ask(self, question: Callable[[Session], dict[str, Any]]) -> dict[str, Any] | str:
        """Return the reply, or why there is none yet."""
        try:
            return question(self._asked)
        except Failure as error:
            if error.exit_code not in _AGAIN:
                raise
            # With a new session: a restarted node may have its admin API at another address.
            if self._asked is not self._session:
                self._asked.close()
            self._asked = Session(self._session.settings)
            return f"{error.what}: {error.why}"

    def tell(self, text: str) -> None:
        now_s = time.monotonic()
        if text != self._told and now_s - self._told_s >= TELL_EVERY_S:
            self._session.remark(f"waiting: {text}")
            self._told, self._told_s = text, now_s

    def rest(self, *, what: str, why: str) -> None:
        """Sleep until the next request. Raises Failure when the time is up."""
        if self.limit_s is not None and self.waited_s >= self.limit_s:
            fix = "`penstock cluster status` says what is wrong; wait longer with --timeout SECONDS"
            raise Failure(what, why, fix, exit_code=ExitCode.TIMEOUT)
        time.sleep(ASK_EVERY_S)

    def close(self) -> None:
        if self._asked is not self._session:
            self._asked.close()


@click.command("wait-safe", cls=Verb)
@click.option("--node", type=click.IntRange(1), help="the node to be stopped [default: any one]")
@pass_session
def wait_safe(session: Session, node: int | None) -> None:
    """Wait until a node may be stopped.

    That is, until every partition could still be written to without it. For rolling restarts:
    before each node is stopped. Waits 300 seconds, or --timeout.
    """
    whom = "any one node" if node is None else f"node {node}"
    waiting = _Waiting(session, seconds_default=SAFE_S_DEFAULT)
    try:
        while True:
            found = waiting.ask(lambda asked: _safety(asked, node))
            if isinstance(found, dict) and found["is_safe"]:
                break
            why = found if isinstance(found, str) else dangers(found)
            waiting.tell(why)
            waiting.rest(what=f"it is not safe to stop {whom}", why=why)
    finally:
        waiting.close()
    only_here = sum(risk["only_here"] for risk in found["nodes"])
    if only_here:
        kept = counted(only_here, "partition")
        session.remark(f"{kept} on one node alone, as their topics want it: they will be away")
    if session.out.is_table:
        session.out.line(f"safe: {whom} may be stopped")
    else:
        session.out.one({"node": node, "waited_s": round(waiting.waited_s, 1), **found})


def _safety(session: Session, node: int | None) -> dict[str, Any]:
    try:
        return session.admin.get(
            "cluster/safety", {"node": node}, what="cannot ask whether a node may stop"
        )
    except Failure as error:
        if error.exit_code is not ExitCode.NOT_FOUND or node is None:
            raise
        # The node may be restarting; for a node that never existed the wait ends by timeout.
        raise Failure(error.what, error.why, exit_code=ExitCode.UNREACHABLE) from None


@click.command(cls=Verb)
@click.argument("node", metavar="NODE", type=click.IntRange(1))
@pass_session
def decommission(session: Session, node: int) -> None:
    """Empty a node for good, and wait until it may be stopped."""
    what = f"cannot decommission node {node}"
    told = session.admin.call("POST", f"cluster/nodes/{node}/decommission", body={}, what=what)
    waiting = _Waiting(session, seconds_default=None)
    total = left = int(told["replicas"])
    is_quiet = session.settings.quiet
    try:
        with Progress(f"emptying node {node}", total=total, is_quiet=is_quiet) as progress:
            while left:
                found = waiting.ask(
                    lambda asked: asked.admin.get("cluster", what="cannot ask how the cluster is")
                )
                if isinstance(found, dict):
                    left = sum(one["replicas"] for one in found["nodes"] if one["node"] == node)
                    total = max(total, left)
                    progress.update(total - left, total=total)
                    why = f"{counted(left, 'partition')} still on node {node}"
                else:
                    why = found
                if left:
                    if not is_drawing(sys.stderr):  # otherwise the progress bar shows it
                        waiting.tell(why)
                    waiting.rest(what=f"node {node} is not empty yet", why=why)
    except (KeyboardInterrupt, Failure):
        session.remark(
            f"node {node} is still being emptied; run this again to go on waiting, or"
            f" `penstock cluster undrain {node}` to take it back"
        )
        raise
    finally:
        waiting.close()
    if session.out.is_table:
        session.out.line(f"node {node} is empty: it may be stopped for good")
        session.out.line("do not give its number to another machine")
    else:
        session.out.one({"node": node, "replicas": 0, "is_empty": True}, name="node")
