"""Commands of ``penstock group``, which use only the Kafka protocol. They work with classic,
consumer (KIP-848), share and streams groups."""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from penstock.cli.clients.kafka import Kafka, check, failing
from penstock.cli.command import Noun, Session, confirm_name
from penstock.cli.terminal.failure import NotFound
from penstock.cli.terminal.options import Texts, yes_option
from penstock.cli.terminal.output import (
    Column,
    Json,
    columns,
    duration,
    field,
    none_of,
    watch_options,
    watch_rows,
)
from penstock.cli.topics import offsets
from penstock.model.names import is_bookkeeping_group
from penstock.net.kafka_client.client import Group, Place, by_topic
from penstock.record.batch import parse_header
from penstock.record.malformed import MalformedBatch
from penstock.record.record import iter_records
from penstock.wire.kafka.consumer_records import decode_assignment
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import (
    consumer_group_describe,
    delete_groups,
    describe_groups,
    share_group_describe,
    streams_group_describe,
)
from penstock.wire.kafka.primitives import Malformed

_DESCRIBE_BY_TYPE = {
    "consumer": consumer_group_describe,
    "share": share_group_describe,
    "streams": streams_group_describe,
}
_LOOK_BYTES = 65_536
_LOOKS_MAX = 16  # fetches to skip batches without records, such as lease events

_LIST_COLUMNS = columns("name, type, state, protocol")
_MEMBER_COLUMNS = columns(
    "member_id MEMBER, instance_id INSTANCE, client_id CLIENT, host, assigned",
    assigned=lambda places: " ".join(places) or "-",
)
_LAG_COLUMNS = columns("group, topic, partition# PART, committed#, end#, lag#, lag_s# BEHIND")
_RESET_COLUMNS = columns("topic, partition# PART, before#, after#")
group = Noun("group", help="List, show, reset, delete consumer groups; show their lag.")


def _groups(session: Session) -> dict[str, Group]:
    with failing("cannot list groups"):
        return {group.name: group for group in session.kafka.groups()}


def _find(known: Mapping[str, Group], name: str) -> Group:
    if name not in known:
        raise NotFound(
            f"group '{name}' does not exist",
            "the server has no group with this name",
            "list groups with `penstock group list`",
        )
    return known[name]


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


@group.command()
def show(session: Session, name: str) -> None:
    """Show the members of a group, their assigned partitions and the lag of each partition.

    BEHIND is the age of the first uncommitted record."""
    known = _find(_groups(session), name)
    item, members = _described(session, known)
    rows = _lag_rows(session.kafka, known, members)
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
    session.out.many(offsets, columns=_LAG_COLUMNS[1:], empty="no committed offsets")


def _described(session: Session, known: Group) -> tuple[Json, list[Json]]:
    is_classic = known.type not in _DESCRIBE_BY_TYPE
    wanted: Any = {"groups" if is_classic else "group_ids": [known.name]}
    api = _DESCRIBE_BY_TYPE.get(known.type, describe_groups)
    with failing(f"cannot show group '{known.name}'"):
        (found,) = session.kafka.ask(api, node=known.node, **wanted).groups
        check(found)
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
    try:
        given = decode_assignment(blob).assigned_partitions if blob else ()
    except Malformed:
        return []
    return sorted(f"{each.topic}:{number}" for each in given for number in each.partitions)


def _assigned(assignment: Any) -> list[str]:
    """Return assigned partitions as TOPIC:NUMBER, or streams tasks as SUBTOPOLOGY_NUMBER."""
    tasks = getattr(assignment, "active_tasks", None)
    if tasks is not None:
        return sorted(f"{each.subtopology_id}_{n}" for each in tasks for n in each.partitions)
    found = assignment.topic_partitions
    return sorted(f"{each.topic_name}:{number}" for each in found for number in each.partitions)


@group.command()
@watch_options("repeat until Ctrl-C")
def lag(session: Session, names: Texts, watch: bool, interval: float, samples: int | None) -> None:
    """Show the lag of the named groups, or of all groups, in records and in seconds.

    BEHIND is the age of the first uncommitted record. Internal groups of the Spark pipeline have no
    lag and are shown only if named."""
    known = _groups(session)
    wanted = [_find(known, name) for name in names] or [
        known[name] for name in sorted(known) if not is_bookkeeping_group(name)
    ]

    def rows() -> Iterator[Json]:
        for each in wanted:
            yield from _lag_rows(session.kafka, each, _described(session, each)[1])

    if watch:
        watch_rows(session.out, rows, _LAG_COLUMNS, interval, samples, name="group")
        return
    empty = "no committed offsets" if wanted else "no groups"
    session.out.many(rows(), columns=_LAG_COLUMNS, name="group", empty=empty)


@group.command()
@click.option(
    "--to",
    "to",
    required=True,
    metavar="POSITION",
    help="new position: earliest, latest, an offset or a time",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="topic whose offsets are reset; repeatable [default: all topics of the group]",
)
@click.option("--dry-run", is_flag=True, help="print the changes without making them")
def reset(session: Session, name: str, to: str, topics: Texts, dry_run: bool) -> None:
    """Set the committed offsets of a group. The group must have no members.

    A time is like 2026-01-31T12:00:00Z, or -90m for 90 minutes ago, and selects the first record
    at or after it. -10 selects the last 10 records. If an offset is outside the log, the nearest
    offset in the log is used."""
    target = offsets.target_of(to, what="cannot reset to", option="--to")
    kafka, what = session.kafka, f"cannot reset group '{name}'"
    before = offsets.committed(kafka, name)
    places = [place for place in before if not topics or place.topic in topics]
    with failing(what):
        for topic in topics:
            places += kafka.places(topic)
        if not places:
            raise NotFound(
                what,
                "the group has no committed offset",
                "give a topic with --topic, or list groups with `penstock group list`",
            )
        after, _ = offsets.offsets_at(kafka, sorted(set(places)), target)
        if not dry_run:
            offsets.commit(kafka, name, after)
    rows = (
        {**place._asdict(), "before": before.get(place), "after": offset}
        for place, offset in after.items()
    )
    session.out.many(rows, columns=_RESET_COLUMNS, name="topic")
    session.remark(f"{'would reset' if dry_run else 'reset'} {len(after)} partitions of {name}")


@group.command()
@yes_option
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a group and its offsets. The group must have no members."""
    known = _find(_groups(session), name)
    confirm_name(name, verb="delete", is_sure=yes)
    with failing(f"cannot delete group '{name}'"):
        (done,) = session.kafka.ask(delete_groups, node=known.node, groups_names=[name]).results
        check(done)
    session.remark(f"deleted {name}")


# ── The lag of a group ───────────────────────────────────────────────────────────────────────
# In records it is the distance from the committed offset to the end of the partition; leases,
# deletions and transaction markers in the log are counted too. In seconds it is the age of the
# first record that the group has not committed; it is read from the record itself, with one
# small fetch for each partition that has a lag.
# The offset of a share group is its first record that is not finished. Later records may be
# finished as well, so its lag is an upper bound.


def _lag_rows(kafka: Kafka, group: Group, members: Iterable[Json]) -> list[Json]:
    """Return the lag of each partition of all topics that are assigned to members or have committed
    offsets. Without a committed offset the lag is None, or 0 if the partition is empty."""
    known = offsets.committed(kafka, group.name, is_share=group.type == "share")
    # Tasks of a streams group have no topic.
    texts = (text.rpartition(":") for member in members for text in member["assigned"])
    assigned = {Place(topic, int(number)) for topic, _, number in texts if topic}
    places = sorted(_of_living_topics(kafka, {*known, *assigned}))
    if not places:
        return []
    with failing(f"cannot read the lag of group '{group.name}'"):
        starts, ends = kafka.bounds(places)
    now_ms = int(time.time() * 1_000)
    made = []
    for place in places:
        offset, end = known.get(place), ends[place]
        lag: int | None = None
        lag_s: float | None = None
        if offset is not None:
            # Records that retention has removed cannot be read any more, so they are not lag.
            begin = max(offset, starts[place])
            lag = max(0, end - begin)
            lag_s = _seconds_behind(kafka, place, begin, end, now_ms) if lag else 0.0
        elif starts[place] == end:
            lag, lag_s = 0, 0.0
        row = {"group": group.name, **place._asdict(), "committed": offset, "end": end}
        made.append({**row, "lag": lag, "lag_s": lag_s})
    return made


def _of_living_topics(kafka: Kafka, named: set[Place]) -> set[Place]:
    """Return all partitions of the topics in ``named``. Topics that were deleted are left out."""
    found: set[Place] = set()
    for topic in kafka.metadata(sorted(by_topic(named))).topics if named else ():
        if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            with failing(f"cannot read topic '{topic.name}'"):
                check(topic)
            found |= {Place(topic.name, part.partition_index) for part in topic.partitions}
    return found


def _seconds_behind(kafka: Kafka, place: Place, offset: int, end: int, now_ms: int) -> float | None:
    """Return the age of the first record at or after an offset. Return 0 if only control records
    follow, and None if no record is found within a few fetches."""
    limits = {"bytes_min": 0, "bytes_max": _LOOK_BYTES, "partition_bytes_max": _LOOK_BYTES}
    for _ in range(_LOOKS_MAX):
        with failing(f"cannot read {place.topic}/{place.partition}"):
            part = kafka.fetch({place: offset}, wait_ms=0, is_committed=False, **limits)[place]
            check(part)
        data = bytes(part.records)
        is_empty = True
        for header, batch in offsets.whole_batches(data):
            is_empty = False
            if not header.is_control and header.count and header.next_offset > offset:
                return max(0, now_ms - _time_in(batch, offset)) / 1_000
            offset = max(offset, header.next_offset)
        if offset >= end or not data:
            return 0.0
        if is_empty:
            return None
    return None


def _time_in(batch: bytes, offset: int) -> int:
    try:
        for record in iter_records(batch):
            if record.offset >= offset:
                return record.timestamp
    except MalformedBatch:
        pass  # the header still has an approximate time
    return parse_header(batch).max_timestamp
