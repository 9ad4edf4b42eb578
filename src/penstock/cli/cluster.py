"""``penstock cluster``: shows how a cluster is doing, and changes it.

Any node replies for all nodes. Commands that change the cluster are in ``cluster_changes.py``,
commands that wait in ``cluster_waiting.py``; ``up`` and ``down``, which run a cluster on this
machine, are in ``cluster_up.py``."""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from penstock.cli.cluster_changes import drain, place, rebalance, unclean_elect, undrain, upgrade
from penstock.cli.cluster_up import down, up
from penstock.cli.cluster_waiting import decommission, wait_safe
from penstock.cli.cluster_words import (
    levels_of_node,
    own_troubles,
    problems,
    remarks,
    state_of_node,
    verdict,
)
from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column, Row
from penstock.cli.session import Noun, Session, pass_session
from penstock.model.troubles import CLOCK_DO, CLOCK_SKEW_MS_MAX, clock_skew_text

if TYPE_CHECKING:
    from penstock.cli.client import Admin

ASKED_MAX = 50  # other nodes that ``status`` queries, one after the other
ASK_SECONDS_MAX = 2.0

_STATES = (
    "under_replicated",
    "below_minimum",
    "leaderless",
    "lost",
    "moving",
    "missing",
    "orphaned",
)


def _numbers(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes)) or "-"


_STATUS_COLUMNS = (
    Column("node", "NODE", is_number=True, form=str),
    Column("name", "NAME"),
    Column("state", "STATE"),
    Column("leaders", "LEADS", is_number=True),
    Column("replicas", "HOLDS", is_number=True),
    Column("behind", "BEHIND", is_number=True),
)
_MEMBER_COLUMNS = (
    *_STATUS_COLUMNS,
    Column("rack", "RACK", form=lambda rack: rack or "-"),
    Column("version", "VERSION"),
    Column("levels", "LEVELS"),
    Column("http", "SQS"),
    Column("kafka", "KAFKA"),
    Column("internal", "INTERNAL"),
)
_PARTITION_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", is_number=True),
    Column("leader", "LEADER", is_number=True, form=str),
    Column("epoch", "EPOCH", is_number=True),
    Column("replicas", "REPLICAS", form=_numbers),
    Column("in_sync", "IN SYNC", form=_numbers),
    Column("in_sync_min", "MIN", is_number=True),
    Column("moving_to", "MOVING TO", form=_numbers),
    Column("states", "STATE", form=lambda states: ", ".join(states).replace("_", " ") or "ok"),
)


@click.group(cls=Noun)
def cluster() -> None:
    """Nodes and partitions of a cluster: how they are, and where they should be."""


@cluster.command()
@pass_session
def status(session: Session) -> None:
    """Say in words how the cluster is doing.

    Exit code 1 when something is wrong.
    """
    found = session.admin.get("cluster", what="cannot ask how the cluster is")
    of_others, noted = _ask_others(session, found)
    wrong, worth_knowing = problems(found) + of_others, remarks(found) + noted
    if session.out.is_table:
        session.out.line(verdict(found, wrong))
        for line in (*wrong, *worth_knowing):
            session.out.line(f"  - {line}")
        session.out.line("")
        session.out.many(_members(found), columns=_STATUS_COLUMNS, name="node")
    else:
        told = {"healthy": not wrong, "problems": wrong, "remarks": worth_knowing, **found}
        session.out.one(told, name="healthy")
    if wrong:
        raise click.exceptions.Exit(ExitCode.FAILED)


class _Told(NamedTuple):
    """What a node reports about itself, and the bounds of how far its clock is ahead of this
    machine's clock, in ms."""

    info: dict[str, Any]
    ahead_min: float
    ahead_max: float

    def skew_ms(self, other: "_Told") -> int:
        """Return the smallest possible difference of the two clocks."""
        return int(max(self.ahead_min - other.ahead_max, other.ahead_min - self.ahead_max))


def _ask(admin: "Admin") -> _Told:
    began_ms = time.time() * 1_000
    info = admin.info()
    now_ms = info["now_ms"]
    return _Told(info, now_ms - time.time() * 1_000, now_ms - began_ms)


def _ask_others(session: Session, found: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the troubles that other nodes report about themselves, and remarks: their warnings,
    and the nodes that this machine cannot reach."""
    wrong: list[str] = []
    noted: list[str] = []
    own: _Told | None = None
    # Workers share one address: the kernel chooses which of them replies there.
    shared = {"", *(one["http"] for one in found["nodes"] if one["node"] == found["node"])}
    others = [one for one in found["nodes"] if one["is_alive"] and one["http"] not in shared]
    for node in others[:ASKED_MAX]:
        told = _ask_at(session, node)
        if told is None:
            noted.append(f"node {node['node']} could not be asked for its own troubles")
            continue
        reasons = told.info.get("reasons") or ()
        wrong += own_troubles(node["node"], reasons)
        noted += own_troubles(node["node"], reasons, are_warnings=True)
        own = own or _ask(session.admin)
        skew_ms = told.skew_ms(own)
        if skew_ms > CLOCK_SKEW_MS_MAX:
            one, other = f"node {found['node']}", f"node {node['node']}"
            wrong.append(f"{clock_skew_text(one, other, skew_ms)}; do: {CLOCK_DO}")
    if len(others) > ASKED_MAX:
        noted.append(f"only {ASKED_MAX} of {len(others)} other nodes were asked")
    return wrong, noted


def _ask_at(session: Session, node: dict[str, Any]) -> _Told | None:
    """Return None if this machine cannot reach the node, or reaches another node."""
    from penstock.cli.client import Admin, Sqs, as_seen_from

    settings = session.settings
    seconds = min(settings.timeout_s, ASK_SECONDS_MAX)
    here = as_seen_from(session.admin.url, node["http"])
    sqs = Sqs(here, region=settings.region, account=None, timeout_s=seconds)
    try:
        url = as_seen_from(here, str(sqs.info()["admin"]))
        admin = Admin(url, region=settings.region, account=None, timeout_s=seconds)
        try:
            told = _ask(admin)
        finally:
            admin.close()
    except Failure:
        return None
    finally:
        sqs.close()
    return told if told.info.get("node") == node["name"] else None


@cluster.command()
@pass_session
def members(session: Session) -> None:
    """List the nodes, with their addresses."""
    found = session.admin.get("cluster", what="cannot list the nodes")
    session.out.many(_members(found), columns=_MEMBER_COLUMNS, name="node")


def _members(found: dict[str, Any]) -> list[Row]:
    return [
        {**node, "state": state_of_node(node), "levels": levels_of_node(node)}
        for node in found["nodes"]
    ]


@cluster.command()
@click.option("--topic", metavar="NAME", help="of this topic or queue only")
@click.option("--node", type=click.IntRange(1), help="on this node only")
@click.option("--state", type=click.Choice(_STATES), help="in this state only")
@click.option("--under-replicated", is_flag=True, help="the same as --state under_replicated")
@pass_session
def partitions(
    session: Session,
    topic: str | None,
    node: int | None,
    state: str | None,
    under_replicated: bool,
) -> None:
    """List partitions with their leaders and replicas."""
    if under_replicated and state not in (None, _STATES[0]):
        raise click.UsageError("--under-replicated and another --state contradict each other.")
    query = {
        "topic": topic,
        "node": node,
        "state": _STATES[0] if under_replicated else state,
    }
    if topic is not None:
        query |= {"account": session.settings.account, "region": session.settings.region}
    found = sorted(
        _pages(session, query), key=lambda one: (one["topic"] or one["topic_id"], one["partition"])
    )
    session.out.many(found, columns=_PARTITION_COLUMNS, name="topic_id")


def _pages(session: Session, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    after = None
    while True:
        reply = session.admin.get(
            "cluster/partitions", {**query, "after": after}, what="cannot list partitions"
        )
        yield from reply["partitions"]
        after = reply["next"]
        if after is None:
            return


for command in (
    drain,
    undrain,
    decommission,
    rebalance,
    wait_safe,
    place,
    unclean_elect,
    upgrade,
    up,
    down,
):
    cluster.add_command(command)
