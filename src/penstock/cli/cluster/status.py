"""Commands of ``penstock cluster`` that show the cluster, as one node reports it, and of ``penstock
coordinator``, which shows and skips an unreadable row in a coordinator's log. A coordinator serves
no requests while its log has such a row."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote

import click

from penstock.cli.command import Noun, Session
from penstock.cli.terminal.failure import ExitCode, Failure
from penstock.cli.terminal.output import Column, Row, columns
from penstock.model import troubles
from penstock.model.troubles import CLOCK_DO, CLOCK_SKEW, CLOCK_SKEW_MS_MAX
from penstock.model.units import counted

QUERIED_MAX = 50  # number of other nodes that ``status`` queries
QUERY_SECONDS_MAX = 2.0

Found = Mapping[str, Any]

_STATE_NAMES = "under_replicated below_minimum leaderless lost moving missing orphaned"
_STATES = _STATE_NAMES.split()


def _numbers(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes)) or "-"


_STATUS_COLUMNS = columns("node#, name, state, leaders# LEADS, replicas# HOLDS, behind#", node=str)
_MEMBER_COLUMNS = (
    *_STATUS_COLUMNS,
    *columns("rack, version, levels, http SQS, kafka, internal", rack=lambda rack: rack or "-"),
)
_PARTITION_COLUMNS = columns(
    "topic, partition#, leader#, epoch#, replicas, in_sync, in_sync_min# MIN, moving_to,"
    " states STATE",
    leader=str,
    replicas=_numbers,
    in_sync=_numbers,
    moving_to=_numbers,
    states=lambda states: ", ".join(states).replace("_", " ") or "ok",
)

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
cluster = Noun(
    "cluster",
    help="Show and change the nodes and partitions of a cluster; run a cluster on this machine.",
)


@cluster.command()
def status(session: Session) -> None:
    """Show the health of the cluster and of its nodes. Exit code 1 if there is a problem."""
    found = session.admin.get("cluster", what="cannot read the cluster status")
    of_others, noted = _query_others(session, found)
    wrong, worth_knowing = problems(found) + of_others, _remarks(found) + noted
    if session.out.is_table:
        alive = sum(node["is_alive"] for node in found["nodes"])
        size = f"{counted(alive, 'node')}, {counted(found['partitions']['total'], 'partition')}"
        verdict = "something is wrong" if wrong else "healthy"
        session.out.line(f"{verdict}: {size}, level {found['level']['in_force']}")
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
    """A node's status, and how far its clock is ahead of this machine's, as a range in ms."""

    info: dict[str, Any]
    ahead_min: float
    ahead_max: float


def _report_of(session: Session) -> _Report:
    began_ms = time.time() * 1_000
    info = session.admin.info()
    now_ms = info["now_ms"]
    return _Report(info, now_ms - time.time() * 1_000, now_ms - began_ms)


def _query_others(session: Session, found: dict[str, Any]) -> tuple[list[str], list[str]]:
    wrong: list[str] = []
    noted: list[str] = []
    own: _Report | None = None
    # Workers have a common address: the kernel chooses the worker that replies.
    shared = {"", *(one["http"] for one in found["nodes"] if one["node"] == found["node"])}
    others = [one for one in found["nodes"] if one["is_alive"] and one["http"] not in shared]
    for node in others[:QUERIED_MAX]:
        report = _report_of_node(session, node)
        if report is None:
            noted.append(f"node {node['node']} did not report its own problems")
            continue
        reasons = report.info.get("reasons") or ()
        wrong += _own_troubles(node["node"], reasons)
        noted += _own_troubles(node["node"], reasons, are_warnings=True)
        own = own or _report_of(session)
        # The smallest possible difference of the two clocks.
        skews = (report.ahead_min - own.ahead_max, own.ahead_min - report.ahead_max)
        skew_ms = int(max(skews))
        if skew_ms > CLOCK_SKEW_MS_MAX:
            one, other = f"node {found['node']}", f"node {node['node']}"
            trouble = CLOCK_SKEW.filled(places=f"{one} and {other}", skew_ms=abs(skew_ms))
            wrong.append(f"{trouble.text}; do: {CLOCK_DO}")
    if len(others) > QUERIED_MAX:
        noted.append(f"only {QUERIED_MAX} of {len(others)} other nodes were queried")
    return wrong, noted


def _report_of_node(session: Session, node: dict[str, Any]) -> _Report | None:
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


def _members(found: Found) -> list[Row]:
    rows: list[Row] = []
    for node in found["nodes"]:
        alive = "leaving" if node["is_leaving"] else "alive"
        marks = [mark for mark in ("draining", "manager") if node[f"is_{mark}"]]
        state = ", ".join((alive if node["is_alive"] else "away", *marks))
        lowest, highest = node["feature_level_min"], node["feature_level"]
        levels = f"{highest}" if lowest == highest else f"{lowest}-{highest}"
        rows.append({**node, "state": state, "levels": levels})
    return rows


@cluster.command()
@click.option("--topic", metavar="NAME", help="list only partitions of this topic or queue")
@click.option("--node", type=click.IntRange(1), help="list only partitions on this node")
@click.option("--state", type=click.Choice(_STATES), help="list only partitions in this state")
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


# ── Problems as sentences ────────────────────────────────────────────────────────────────────
# They are derived from the reply of the admin API, so that all commands agree.


def problems(found: Found) -> list[str]:
    """Return the problems of the cluster and of the node that replied, each with its fix."""
    known = [] if found["manager"] is not None else [troubles.NO_MANAGER]
    known += [
        troubles.node_dead(
            node["node"],
            node["name"],
            node["replicas"],
            was_stopped=node["is_leaving"],
            is_draining=node["is_draining"],
        )
        for node in found["nodes"]
        if not node["is_alive"]
    ]
    known += troubles.partition_troubles(found["partitions"])
    if found["trouble"] is not None:
        known.append(troubles.METADATA_AWAY.filled(found["trouble"]))
    lines = []
    for one in known:
        reason = one.facts().get("reason")
        lines.append(f"{one.text}{f' ({reason})' if reason else ''}; do: {one.do}")
    kinds = {one.kind.value for one in known}
    own = [one for one in found.get("reasons") or () if one["kind"] not in kinds]
    return lines + _own_troubles(found["node"], own)


def _own_troubles(node: int, reasons: Sequence[Found], *, are_warnings: bool = False) -> list[str]:
    """Return the problems or, with ``are_warnings``, the warnings that a node reports about itself.
    Problems of the whole cluster are left out: ``problems`` finds them in the cluster status."""
    return [
        f"node {node}: {one['text']}; do: {one['do']}"
        for one in reasons
        if one["kind"] not in troubles.CLUSTER_WIDE
        and (one["kind"] in troubles.WARNINGS) is are_warnings
    ]


def _remarks(found: Found) -> list[str]:
    lines = _own_troubles(found["node"], found.get("reasons") or (), are_warnings=True)
    for node in found["nodes"]:
        if node["is_draining"] and node["is_alive"]:
            held = node["replicas"]
            rest = f"has {counted(held, 'partition')} left" if held else "is empty"
            lines.append(f"node {node['node']} is being drained and {rest}")
        elif node["is_leaving"] and node["is_alive"]:
            lines.append(f"node {node['node']} is about to stop")
    moving = found["partitions"]["moving"]
    if moving:
        lines.append(f"{counted(moving, 'partition')} moving")
    versions = sorted({node["version"] for node in found["nodes"] if node["is_alive"]})
    if len(versions) > 1:
        lines.append(f"nodes run different versions: {', '.join(versions)}")
    level = found["level"]
    if level["wanted"] is not None:
        lines.append(f"the feature level is being raised to {level['wanted']}")
    elif level["latest"] > level["in_force"]:
        lines.append(
            f"all nodes support feature level {level['latest']}: run `penstock cluster upgrade`"
        )
    return lines


coordinator = Noun(
    "coordinator",
    help="Show or skip an unreadable row in the log of a coordinator (__groups, __transactions).",
)


@coordinator.command()
@_partition_argument
@click.argument("offset", type=_OFFSETS, required=False)
def show(session: Session, topic: str, partition: int, offset: int | None) -> None:
    """Show the first unreadable row in a partition of a coordinator's log, or the row at OFFSET."""
    path, what = _path(topic, partition), f"cannot read {topic}/{partition}"
    found = session.admin.get(path, {"offset": offset}, what=what)
    _print_log(session, found, found["unreadable"] if offset is None else found["row"])


@coordinator.command()
@_partition_argument
@click.argument("offset", type=_OFFSETS)
def skip(session: Session, topic: str, partition: int, offset: int) -> None:
    """Skip the unreadable row at OFFSET. This cannot be undone.

    The content of the row is lost; all other rows are kept. The coordinator serves requests again
    at once, unless a later row is unreadable too."""
    path = f"{_path(topic, partition)}/skip"
    what = f"cannot skip the row at offset {offset} of {topic}/{partition}"
    found = session.admin.call("POST", path, body={"offset": offset}, what=what)
    _print_log(session, found, found["unreadable"])


def _path(topic: str, partition: int) -> str:
    return f"coordinators/{quote(topic, safe='')}/{partition}"


def _print_log(session: Session, found: dict[str, Any], row: Row | None) -> None:
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
