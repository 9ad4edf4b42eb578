"""``penstock group``: shows consumer groups and their lag, and resets their offsets.

It uses the Kafka protocol only, so it works with the groups of any Kafka client: classic groups,
groups of KIP-848, and share groups."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from penstock.cli.clients.kafka import Group, Place, check
from penstock.cli.command import Noun, Session, confirm_name
from penstock.cli.terminal.failure import NotFound
from penstock.cli.terminal.output import (
    Column,
    columns,
    duration,
    field,
    none_of,
    watch_options,
    watch_rows,
)
from penstock.cli.topics import group_lag
from penstock.cli.topics.group_offsets import commit, committed, share_starts
from penstock.cli.topics.positions import offsets_at, target_of
from penstock.model.names import is_bookkeeping_group
from penstock.wire.kafka.consumer_protocol import decode_assignment
from penstock.wire.kafka.generated.consumer_group_describe import ConsumerGroupDescribeRequest
from penstock.wire.kafka.generated.delete_groups import DeleteGroupsRequest
from penstock.wire.kafka.generated.describe_groups import DescribeGroupsRequest
from penstock.wire.kafka.generated.share_group_describe import ShareGroupDescribeRequest
from penstock.wire.kafka.generated.streams_group_describe import StreamsGroupDescribeRequest
from penstock.wire.kafka.malformed import Malformed

_DESCRIBE_GROUPS, _DELETE_GROUPS = 15, 42
# How to describe groups whose members are assigned by the server.
_DESCRIBE_BY_TYPE: Mapping[str, tuple[int, Any]] = {
    "consumer": (69, ConsumerGroupDescribeRequest),
    "share": (77, ShareGroupDescribeRequest),
    "streams": (89, StreamsGroupDescribeRequest),
}

Json = dict[str, Any]


@click.group(cls=Noun)
def group() -> None:
    """List, show, reset, delete consumer groups; show their lag."""


def _groups(session: Session) -> dict[str, Group]:
    found = session.kafka.groups(what="cannot list groups")
    return {group.name: group for group in found}


def _find(session: Session, name: str) -> Group:
    known = _groups(session)
    if name not in known:
        raise NotFound(
            f"no group '{name}'",
            "the server has no group with this name",
            "list groups with `penstock group list`",
        )
    return known[name]


_LIST_COLUMNS = columns("name, type, state, protocol")


@group.command("list")
@click.argument("prefix", default="")
@click.option(
    "--all", "is_all", is_flag=True, help="also list internal groups of the Spark pipeline"
)
def list_groups(session: Session, prefix: str, is_all: bool) -> None:
    """List all groups, or the groups whose name starts with PREFIX."""
    rows = (
        {"name": name, "type": each.type, "state": each.state, "protocol": each.protocol}
        for name, each in _groups(session).items()
        if name.startswith(prefix) and (is_all or not is_bookkeeping_group(name))
    )
    session.out.many(rows, columns=_LIST_COLUMNS, empty=none_of("groups", prefix))


_MEMBER_COLUMNS = (
    *columns("member_id MEMBER, instance_id INSTANCE, client_id CLIENT, host"),
    Column("assigned", "ASSIGNED", form=lambda places: " ".join(places) or "-"),
)


@group.command()
def show(session: Session, name: str) -> None:
    """Show the members of a group, their assigned partitions and the lag of each partition.

    BEHIND is the age of the first uncommitted record.
    """
    known = _find(session, name)
    item, members = _described(session, known)
    rows = group_lag.rows_of(session.kafka, name, _progress(session, known, members))
    offsets = [{key: value for key, value in row.items() if key != "group"} for row in rows]
    item["lag"] = sum(row["lag"] or 0 for row in rows)
    item["lag_s"] = max((row["lag_s"] or 0.0 for row in rows), default=0.0)
    if not session.out.is_table:
        session.out.one({**item, "members": members, "offsets": offsets})
        return
    behind = Column("lag_s", "behind", form=duration)
    session.out.one(item, columns=[behind if key == "lag_s" else field(key) for key in item])
    session.out.line("")
    session.out.many(members, columns=_MEMBER_COLUMNS, empty="no members")
    session.out.line("")
    session.out.many(offsets, columns=group_lag.COLUMNS[1:], empty="no committed offsets")


def _described(session: Session, known: Group) -> tuple[Json, list[Json]]:
    """Return a group and its members."""
    is_classic = known.type not in _DESCRIBE_BY_TYPE
    if is_classic:
        key, request = _DESCRIBE_GROUPS, DescribeGroupsRequest(groups=[known.name])
    else:
        key, kind = _DESCRIBE_BY_TYPE[known.type]
        request = kind(group_ids=[known.name])
    (found,) = session.kafka.call(key, request, node=known.node).groups
    check(f"cannot show group '{known.name}'", found.error_code, found.error_message)
    item = {"name": known.name, "type": known.type, "state": found.group_state}
    if is_classic:
        item |= {"type": "classic", "assignor": found.protocol_data}
    else:
        item["assignor"] = getattr(found, "assignor_name", "sticky")
        item["epoch"] = found.group_epoch
    return item, [_member(each, is_classic=is_classic) for each in found.members]


def _member(member: Any, *, is_classic: bool) -> Json:
    id_field = "group_instance_id" if is_classic else "instance_id"
    item = {
        "member_id": member.member_id,
        "instance_id": getattr(member, id_field, None),
        "client_id": member.client_id,
        "host": member.client_host.removeprefix("/"),
    }
    if is_classic:
        return {**item, "assigned": _decoded(member.member_assignment)}
    return {**item, "assigned": _assigned(member.assignment), "epoch": member.member_epoch}


def _decoded(blob: bytes) -> list[str]:
    """Return the partitions assigned to a consumer; assignments of other clients are opaque."""
    try:
        given = decode_assignment(blob).assigned_partitions if blob else ()
    except Malformed:
        return []
    return sorted(f"{each.topic}:{number}" for each in given for number in each.partitions)


def _assigned(assignment: Any) -> list[str]:
    """Return partitions as TOPIC:NUMBER, or tasks of a streams group as SUBTOPOLOGY_NUMBER."""
    tasks = getattr(assignment, "active_tasks", None)
    if tasks is not None:
        return sorted(f"{each.subtopology_id}_{n}" for each in tasks for n in each.partitions)
    found = assignment.topic_partitions
    return sorted(f"{each.topic_name}:{number}" for each in found for number in each.partitions)


def _progress(session: Session, known: Group, members: Iterable[Json]) -> group_lag.Progress:
    offsets_of = share_starts if known.type == "share" else committed
    return group_lag.Progress(offsets_of(session.kafka, known.name), list(_partitions(members)))


def _partitions(members: Iterable[Json]) -> Iterator[Place]:
    """Yield the partitions assigned to the members, parsed from the text that is shown."""
    for member in members:
        for text in member["assigned"]:
            topic, _, number = text.rpartition(":")
            if topic:  # tasks of a streams group have no topic
                yield Place(topic, int(number))


@group.command()
@watch_options("refresh until Ctrl-C")
def lag(
    session: Session, names: tuple[str, ...], watch: bool, interval: float, samples: int | None
) -> None:
    """Show the lag of the named groups, or of all, in records and in seconds.

    BEHIND is the age of the first uncommitted record. Internal groups of the Spark pipeline have
    no lag and are shown only if named.
    """
    known = _groups(session)
    for name in names:
        if name not in known:
            _find(session, name)
    wanted = list(names) or sorted(name for name in known if not is_bookkeeping_group(name))

    def rows() -> Iterator[Json]:
        for name in wanted:
            members = _described(session, known[name])[1]
            progress = _progress(session, known[name], members)
            yield from group_lag.rows_of(session.kafka, name, progress)

    if watch:
        watch_rows(session.out, rows, group_lag.COLUMNS, interval, samples, name="group")
        return
    empty = "no committed offsets" if wanted else "no groups"
    session.out.many(rows(), columns=group_lag.COLUMNS, name="group", empty=empty)


_RESET_COLUMNS = columns("topic, partition# PART, before#, after#")


@group.command()
@click.option("--to", "to", required=True, metavar="begin|end|OFFSET|TIME", help="new position")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="topic to reset; repeatable [default: all with committed offsets]",
)
@click.option("--dry-run", is_flag=True, help="print the changes without making them")
def reset(session: Session, name: str, to: str, topics: tuple[str, ...], dry_run: bool) -> None:
    """Set the committed offsets of a group. The group must have no members.

    TIME is like 2026-01-31T12:00:00Z, or -90m for 90 minutes ago, and means the first record at or
    after it; -10 means 10 records before the end. Offsets outside the log become its nearest end.
    """
    target = target_of(to, what="cannot reset to", option="--to")
    before = committed(session.kafka, name)
    what = f"cannot reset group '{name}'"
    places = [place for place in before if not topics or place.topic in topics]
    for topic in topics:
        places += session.kafka.places(topic, what=what)
    if not places:
        raise NotFound(
            what,
            "the group has no committed offset",
            "give a topic with --topic, or list groups with `penstock group list`",
        )
    after, _ = offsets_at(session.kafka, sorted(set(places)), target, what=what)
    if not dry_run:
        commit(session.kafka, name, after, what=what)
    rows = (
        {**place._asdict(), "before": before.get(place), "after": offset}
        for place, offset in after.items()
    )
    session.out.many(rows, columns=_RESET_COLUMNS, name="topic")
    session.remark(f"{'would reset' if dry_run else 'reset'} {len(after)} partitions of {name}")


@group.command()
@click.option("--yes", is_flag=True, help="do not ask for confirmation")
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a group and its offsets. The group must have no members."""
    known = _find(session, name)
    confirm_name(name, verb="delete", is_sure=yes)
    request = DeleteGroupsRequest(groups_names=[name])
    (done,) = session.kafka.call(_DELETE_GROUPS, request, node=known.node).results
    check(f"cannot delete group '{name}'", done.error_code)
    session.remark(f"deleted {name}")
