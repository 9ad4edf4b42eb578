"""``penstock group``: consumer groups, how far behind they are, and where they go on from.

Through the Kafka protocol only, so it works with the groups of any Kafka client, in the classic
protocol and in that of KIP-848.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column
from penstock.cli.session import Noun, Session, confirm_name, pass_session

_OFFSET_COMMIT, _DESCRIBE_GROUPS, _LIST_GROUPS = 8, 15, 16
_DELETE_GROUPS, _CONSUMER_GROUP_DESCRIBE = 42, 69
_BY_NAME_MAX = 9  # newer commits name topics by id


@click.group(cls=Noun)
def group() -> None:
    """List, show, reset, delete consumer groups; see how far they lag."""


class Known(NamedTuple):
    """A group as its coordinator lists it."""

    name: str
    node: int
    type: str
    state: str
    protocol: str


def _known(session: Session) -> list[Known]:
    from penstock.cli.kafka_client import check
    from penstock.wire.kafka.generated.list_groups import ListGroupsRequest

    found = []
    for node in session.kafka.nodes():
        reply = session.kafka.call(_LIST_GROUPS, ListGroupsRequest(), node=node)
        check("cannot list groups", reply.error_code)
        found += [
            Known(
                each.group_id,
                node,
                (each.group_type or "classic").lower(),
                each.group_state,
                each.protocol_type,
            )
            for each in reply.groups
        ]
    return sorted(found)


def _find(session: Session, name: str) -> Known:
    for known in _known(session):
        if known.name == name:
            return known
    raise Failure(
        f"no group '{name}'",
        "the server knows no group of this name",
        "see which exist with `penstock group list`",
        exit_code=ExitCode.NOT_FOUND,
    )


_LIST_COLUMNS = (
    Column("name", "NAME"),
    Column("type", "TYPE"),
    Column("state", "STATE"),
    Column("protocol", "PROTOCOL"),
)


@group.command("list")
@click.argument("prefix", default="")
@pass_session
def list_groups(session: Session, prefix: str) -> None:
    """List groups, or those that start with PREFIX."""
    rows = (
        {
            "name": known.name,
            "type": known.type,
            "state": known.state,
            "protocol": known.protocol,
        }
        for known in _known(session)
        if known.name.startswith(prefix)
    )
    session.out.many(rows, columns=_LIST_COLUMNS)


_MEMBER_COLUMNS = (
    Column("member_id", "MEMBER"),
    Column("instance_id", "INSTANCE"),
    Column("client_id", "CLIENT"),
    Column("host", "HOST"),
    Column("assigned", "ASSIGNED", form=lambda places: " ".join(places) or "-"),
)


@group.command()
@click.argument("name")
@pass_session
def show(session: Session, name: str) -> None:
    """Show the members of a group, what each is assigned, and the committed offsets."""
    from penstock.cli.group_lag import committed

    known = _find(session, name)
    described = _consumer_group if known.type == "consumer" else _classic_group
    item, members = described(session, known)
    offsets = [
        {"topic": place.topic, "partition": place.partition, "committed": offset}
        for place, offset in sorted(committed(session.kafka, name).items())
    ]
    if not session.out.is_table:
        session.out.one({**item, "members": members, "offsets": offsets})
        return
    session.out.one(item)
    session.out.line("")
    session.out.many(members, columns=_MEMBER_COLUMNS)
    session.out.line("")
    columns = (
        Column("topic", "TOPIC"),
        Column("partition", "PART", is_number=True),
        Column("committed", "COMMITTED", is_number=True),
    )
    session.out.many(offsets, columns=columns)


Described = tuple[dict[str, Any], list[dict[str, Any]]]


def _classic_group(session: Session, known: Known) -> Described:
    from penstock.cli.kafka_client import check
    from penstock.wire.kafka.generated.describe_groups import DescribeGroupsRequest

    request = DescribeGroupsRequest(groups=[known.name])
    (found,) = session.kafka.call(_DESCRIBE_GROUPS, request, node=known.node).groups
    check(f"cannot show group '{known.name}'", found.error_code, found.error_message)
    members = [
        {
            "member_id": member.member_id,
            "instance_id": member.group_instance_id,
            "client_id": member.client_id,
            "host": member.client_host.removeprefix("/"),
            "assigned": _assigned(member.member_assignment),
        }
        for member in found.members
    ]
    item = {
        "name": known.name,
        "type": "classic",
        "state": found.group_state,
        "assignor": found.protocol_data,
    }
    return item, members


def _assigned(blob: bytes) -> list[str]:
    """What a member was given, where it is a consumer; other kinds of groups have other blobs."""
    from penstock.wire.kafka.consumer_protocol import decode_assignment
    from penstock.wire.kafka.malformed import Malformed

    if not blob:
        return []
    try:
        given = decode_assignment(blob).assigned_partitions
    except Malformed:
        return []
    return sorted(f"{each.topic}:{number}" for each in given for number in each.partitions)


def _consumer_group(session: Session, known: Known) -> Described:
    from penstock.cli.kafka_client import check
    from penstock.wire.kafka.generated.consumer_group_describe import ConsumerGroupDescribeRequest

    request = ConsumerGroupDescribeRequest(group_ids=[known.name])
    (found,) = session.kafka.call(_CONSUMER_GROUP_DESCRIBE, request, node=known.node).groups
    check(f"cannot show group '{known.name}'", found.error_code, found.error_message)
    members = [
        {
            "member_id": member.member_id,
            "instance_id": member.instance_id,
            "client_id": member.client_id,
            "host": member.client_host.removeprefix("/"),
            "assigned": sorted(
                f"{each.topic_name}:{number}"
                for each in member.assignment.topic_partitions
                for number in each.partitions
            ),
            "epoch": member.member_epoch,
        }
        for member in found.members
    ]
    item = {
        "name": known.name,
        "type": "consumer",
        "state": found.group_state,
        "assignor": found.assignor_name,
        "epoch": found.group_epoch,
    }
    return item, members


@group.command()
@click.argument("names", nargs=-1)
@click.option("--watch", is_flag=True, help="again and again until Ctrl-C")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3_600.0),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
)
@click.option("--samples", type=click.IntRange(min=1), help="with --watch: stop after so many")
@pass_session
def lag(
    session: Session, names: tuple[str, ...], watch: bool, interval: float, samples: int | None
) -> None:
    """Show how far some groups, or all, are behind: in records and in seconds.

    BEHIND is the age of the first record that is not committed.
    """
    from penstock.cli import group_lag

    known = {each.name for each in _known(session)}
    for name in names:
        if name not in known:
            _find(session, name)
    wanted = list(names) or sorted(known)
    if watch:
        group_lag.watch(session, wanted, interval_s=interval, samples_max=samples)
        return
    session.out.many(group_lag.rows(session.kafka, wanted), columns=group_lag.COLUMNS, name="group")


_AGO = re.compile(r"-([0-9]+)([smhd])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Target(NamedTuple):
    """Where a reset goes: ``offset`` itself, or the offset at ``time`` (EARLIEST and LATEST
    among them)."""

    offset: int | None = None
    time: int | None = None


def target_of(text: str, now_ms: int) -> Target:
    from penstock.cli.kafka_client import EARLIEST, LATEST

    if text == "begin":
        return Target(time=EARLIEST)
    if text == "end":
        return Target(time=LATEST)
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return Target(offset=int(text))
    ago = _AGO.match(text)
    if ago is not None:
        return Target(time=max(0, now_ms - int(ago[1]) * _SECONDS[ago[2]] * 1_000))
    from datetime import UTC, datetime

    try:
        if "-" not in text:  # a number that is no offset would be read as digits of a date
            raise ValueError(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Failure(
            f"cannot reset to '{text}'",
            "--to takes begin, end, an offset, -90m (so long ago) or a time",
            "write a time like 2026-01-31T12:00:00Z",
            exit_code=ExitCode.USAGE,
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Target(time=max(0, int(moment.timestamp() * 1_000)))


_RESET_COLUMNS = (
    Column("topic", "TOPIC"),
    Column("partition", "PART", is_number=True),
    Column("before", "BEFORE", is_number=True),
    Column("after", "AFTER", is_number=True),
)


@group.command()
@click.argument("name")
@click.option(
    "--to", "to", required=True, metavar="begin|end|OFFSET|TIME", help="where to go on from"
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="only this one; can be given many times [default: all it has committed]",
)
@click.option("--dry-run", is_flag=True, help="show what would change, and change nothing")
@pass_session
def reset(session: Session, name: str, to: str, topics: tuple[str, ...], dry_run: bool) -> None:
    """Let a group go on from somewhere else. The group must have no members.

    TIME is like 2026-01-31T12:00:00Z, or -90m for so long ago: the first record at or behind it.
    An offset outside of a partition becomes its nearest end.
    """
    import time

    from penstock.cli.group_lag import committed

    target = target_of(to, int(time.time() * 1_000))
    before = committed(session.kafka, name)
    what = f"cannot reset group '{name}'"
    places = [place for place in before if not topics or place.topic in topics]
    for topic in topics:
        places += session.kafka.places(topic, what=what)
    if not places:
        raise Failure(
            what,
            "it has committed no offset",
            "name a topic with --topic, and see groups with `penstock group list`",
            exit_code=ExitCode.NOT_FOUND,
        )
    after = _targets(session, sorted(set(places)), target, what=what)
    if not dry_run:
        _commit(session, name, after, what=what)
    rows = (
        {
            "topic": place.topic,
            "partition": place.partition,
            "before": before.get(place),
            "after": offset,
        }
        for place, offset in after.items()
    )
    session.out.many(rows, columns=_RESET_COLUMNS, name="topic")
    session.remark(f"{'would reset' if dry_run else 'reset'} {len(after)} partitions of {name}")


def _targets(session: Session, places: list[Any], target: Target, *, what: str) -> dict[Any, int]:
    from penstock.cli.kafka_client import EARLIEST, LATEST

    starts = session.kafka.offsets(dict.fromkeys(places, EARLIEST), what=what)
    ends = session.kafka.offsets(dict.fromkeys(places, LATEST), what=what)
    if target.time is not None:
        found = session.kafka.offsets(dict.fromkeys(places, target.time), what=what)
        # Nothing so new: the group goes on with what comes next.
        wanted = {place: found[place] if found[place] >= 0 else ends[place] for place in places}
    else:
        assert target.offset is not None
        wanted = dict.fromkeys(places, target.offset)
    return {place: min(max(wanted[place], starts[place]), ends[place]) for place in places}


def _commit(session: Session, name: str, offsets: Mapping[Any, int], *, what: str) -> None:
    """As somebody outside of the group, which the coordinator allows only without members."""
    from penstock.cli.kafka_client import by_topic, check
    from penstock.wire.kafka.generated import offset_commit as api

    topics = [
        api.OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                api.OffsetCommitRequestPartition(place.partition, offset)
                for place, offset in offsets.items()
                if place.topic == topic
            ],
        )
        for topic in by_topic(offsets)
    ]
    request = api.OffsetCommitRequest(group_id=name, topics=topics)
    node = session.kafka.coordinator(name, what=what)
    reply = session.kafka.call(_OFFSET_COMMIT, request, node=node, version_max=_BY_NAME_MAX)
    for topic in reply.topics:
        for part in topic.partitions:
            check(f"{what}: {topic.name}, {part.partition_index}", part.error_code)


@group.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="do not ask")
@pass_session
def delete(session: Session, name: str, yes: bool) -> None:
    """Forget a group and its offsets. The group must have no members."""
    from penstock.cli.kafka_client import check
    from penstock.wire.kafka.generated.delete_groups import DeleteGroupsRequest

    known = _find(session, name)
    confirm_name(name, verb="delete", is_sure=yes)
    request = DeleteGroupsRequest(groups_names=[name])
    (done,) = session.kafka.call(_DELETE_GROUPS, request, node=known.node).results
    check(f"cannot delete group '{name}'", done.error_code)
    session.remark(f"deleted {name}")
