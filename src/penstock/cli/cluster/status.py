"""``penstock cluster``: shows how a cluster is doing, and changes it.

Any node replies for all nodes. Commands that change the cluster are in ``changes.py``, commands
that wait in ``waiting.py``; ``up`` and ``down``, which run a cluster on this machine, in ``up.py``.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import click

from penstock.cli.cluster.changes import drain, place, rebalance, unclean_elect, undrain, upgrade
from penstock.cli.cluster.sentences import (
    levels_of_node,
    own_troubles,
    problems,
    remarks,
    state_of_node,
    verdict,
)
from penstock.cli.cluster.up import down, up
from penstock.cli.cluster.waiting import decommission, wait_safe
from penstock.cli.command import Noun, Session
from penstock.cli.terminal.failure import ExitCode, Failure
from penstock.cli.terminal.output import Column, Row, columns
from penstock.model.troubles import CLOCK_DO, CLOCK_SKEW_MS_MAX, clock_skew_text

QUERIED_MAX = 50  # other nodes that ``status`` queries, one after the other
QUERY_SECONDS_MAX = 2.0

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
    *columns("name, state, leaders# LEADS, replicas# HOLDS, behind#"),
)
_MEMBER_COLUMNS = (
    *_STATUS_COLUMNS,
    Column("rack", "RACK", form=lambda rack: rack or "-"),
    *columns("version, levels, http SQS, kafka, internal"),
)
_PARTITION_COLUMNS = (
    *columns("topic, partition#"),
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
    """Show and change the nodes and partitions of a cluster; run one on this machine."""


@cluster.command()
def status(session: Session) -> None:
    """Show the health of the cluster and of its nodes. Exit code 1 if something is wrong."""
    found = session.admin.get("cluster", what="cannot read the cluster status")
    of_others, noted = _query_others(session, found)
    wrong, worth_knowing = problems(found) + of_others, remarks(found) + noted
    if session.out.is_table:
        session.out.line(verdict(found, wrong))
        for line in (*wrong, *worth_knowing):
            session.out.line(f"  - {line}")
        session.out.line("")
        session.out.many(_members(found), columns=_STATUS_COLUMNS, name="node")
    else:
        item = {"healthy": not wrong, "problems": wrong, "remarks": worth_knowing, **found}
        session.out.one(item, name="healthy")
    if wrong:
        raise click.exceptions.Exit(ExitCode.FAILED)


class _Report(NamedTuple):
    """What a node reports about itself, and the bounds of how far its clock is ahead of this
    machine's clock, in ms."""

    info: dict[str, Any]
    ahead_min: float
    ahead_max: float

    def skew_ms(self, other: "_Report") -> int:
        """Return the smallest possible difference of the two clocks."""
        return int(max(self.ahead_min - other.ahead_max, other.ahead_min - self.ahead_max))


def _report_of(session: Session) -> _Report:
    began_ms = time.time() * 1_000
    info = session.admin.info()
    now_ms = info["now_ms"]
    return _Report(info, now_ms - time.time() * 1_000, now_ms - began_ms)


def _query_others(session: Session, found: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the troubles that other nodes report about themselves, and remarks: their warnings,
    and the nodes that this machine cannot reach."""
    wrong: list[str] = []
    noted: list[str] = []
    own: _Report | None = None
    # Workers share one address: the kernel chooses which of them replies there.
    shared = {"", *(one["http"] for one in found["nodes"] if one["node"] == found["node"])}
    others = [one for one in found["nodes"] if one["is_alive"] and one["http"] not in shared]
    for node in others[:QUERIED_MAX]:
        report = _report_of_node(session, node)
        if report is None:
            noted.append(f"node {node['node']} did not report its own problems")
            continue
        reasons = report.info.get("reasons") or ()
        wrong += own_troubles(node["node"], reasons)
        noted += own_troubles(node["node"], reasons, are_warnings=True)
        own = own or _report_of(session)
        skew_ms = report.skew_ms(own)
        if skew_ms > CLOCK_SKEW_MS_MAX:
            one, other = f"node {found['node']}", f"node {node['node']}"
            wrong.append(f"{clock_skew_text(one, other, skew_ms)}; do: {CLOCK_DO}")
    if len(others) > QUERIED_MAX:
        noted.append(f"only {QUERIED_MAX} of {len(others)} other nodes were queried")
    return wrong, noted


def _report_of_node(session: Session, node: dict[str, Any]) -> _Report | None:
    """Return None if this machine cannot reach the node, or reaches another node."""
    from penstock.cli.clients.http import as_seen_from

    settings = session.settings
    endpoint = as_seen_from(session.admin.url, node["http"])
    seconds = min(settings.timeout_s, QUERY_SECONDS_MAX)
    settings = replace(settings, endpoint=endpoint, admin=None, account=None, timeout_s=seconds)
    other = Session(settings)
    try:
        report = _report_of(other)
    except Failure:
        return None
    finally:
        other.close()
    return report if report.info.get("node") == node["name"] else None


@cluster.command()
def members(session: Session) -> None:
    """List the nodes with their addresses and versions."""
    found = session.admin.get("cluster", what="cannot list the nodes")
    session.out.many(_members(found), columns=_MEMBER_COLUMNS, name="node")


def _members(found: dict[str, Any]) -> list[Row]:
    return [
        {**node, "state": state_of_node(node), "levels": levels_of_node(node)}
        for node in found["nodes"]
    ]


@cluster.command()
@click.option("--topic", metavar="NAME", help="topic or queue of the partitions [default: all]")
@click.option("--node", type=click.IntRange(1), help="node of the partitions [default: all]")
@click.option("--state", type=click.Choice(_STATES), help="state of the partitions [default: any]")
@click.option("--under-replicated", is_flag=True, help="the same as --state under_replicated")
def partitions(
    session: Session, topic: str | None, node: int | None, state: str | None, under_replicated: bool
) -> None:
    """List partitions with their leaders and replicas."""
    if under_replicated and state not in (None, _STATES[0]):
        raise click.UsageError("--under-replicated cannot be combined with another --state.")
    query = {"topic": topic, "node": node, "state": _STATES[0] if under_replicated else state}
    if topic is not None:
        query |= {"account": session.settings.account, "region": session.settings.region}
    found = sorted(
        session.admin.pages("cluster/partitions", query, what="cannot list partitions"),
        key=lambda one: (one["topic"] or one["topic_id"], one["partition"]),
    )
    session.out.many(found, columns=_PARTITION_COLUMNS, name="topic_id")


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
