"""``penstock group``: shows consumer groups and their lag, and resets their offsets.

It uses the Kafka protocol only, so it works with the groups of any Kafka client: classic groups,
groups of KIP-848, and share groups."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from penstock.cli import quantity
from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column, duration, field, none_of
from penstock.cli.session import Noun, Session, confirm_name, pass_session
from penstock.model.names import is_bookkeeping_group

if TYPE_CHECKING:
    from penstock.cli.group_lag import Standing
    from penstock.cli.kafka_client import Place

_DESCRIBE_GROUPS, _LIST_GROUPS, _DELETE_GROUPS = 15, 16, 42
_CONSUMER_GROUP_DESCRIBE, _SHARE_GROUP_DESCRIBE, _STREAMS_GROUP_DESCRIBE = 69, 77, 89


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


def known_groups(session: Session) -> list[Known]:
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
    for known in known_groups(session):
        if known.name == name:
            return known
    raise Failure(
        f"no group '{name}'",
        "the server knows no group of this name",
        "list groups with `penstock group list`",
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
@click.option("--all", "is_all", is_flag=True, help="with bookkeeping groups of the Spark pipeline")
@pass_session
def list_groups(session: Session, prefix: str, is_all: bool) -> None:
    """List groups, or those that start with PREFIX."""
    rows = (
        {
            "name": known.name,
            "type": known.type,
            "state": known.state,
            "protocol": known.protocol,
        }
        for known in known_groups(session)
        if known.name.startswith(prefix) and (is_all or not is_bookkeeping_group(known.name))
    )
    session.out.many(rows, columns=_LIST_COLUMNS, empty=none_of("groups", prefix))


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
    """Show the members of a group, what each is assigned, and how far it is behind.

    BEHIND is the age of the first record that is not committed.
    """
    from penstock.cli import group_lag

    known = _find(session, name)
    item, members = _described(session, known)
    standing = _standing(session, known, members)
    rows = list(group_lag.rows(session.kafka, [name], lambda _: standing))
    offsets = [{key: value for key, value in row.items() if key != "group"} for row in rows]
    item["lag"] = sum(row["lag"] or 0 for row in rows)
    item["lag_s"] = max((row["lag_s"] or 0.0 for row in rows), default=0.0)
    if not session.out.is_table:
        session.out.one({**item, "members": members, "offsets": offsets})
        return
    behind = Column("lag_s", "behind", form=duration)
    columns = [behind if key == "lag_s" else field(key) for key in item]
    session.out.one(item, columns=columns)
    session.out.line("")
    session.out.many(members, columns=_MEMBER_COLUMNS, empty="no members")
    session.out.line("")
    session.out.many(offsets, columns=group_lag.COLUMNS[1:], empty="no committed offsets")


Described = tuple[dict[str, Any], list[dict[str, Any]]]


def _described(session: Session, known: Known) -> Described:
    describe = {
        "consumer": _consumer_group,
        "share": _share_group,
        "streams": _streams_group,
    }.get(known.type, _classic_group)
    return describe(session, known)


def _standing(session: Session, known: Known, members: Iterable[Mapping[str, Any]]) -> "Standing":
    from penstock.cli.group_lag import Standing
    from penstock.cli.group_offsets import committed, share_starts

    offsets_of = share_starts if known.type == "share" else committed
    return Standing(offsets_of(session.kafka, known.name), list(_places(members)))


def _places(members: Iterable[Mapping[str, Any]]) -> Iterator["Place"]:
    """Yield the partitions assigned to the members, parsed from the text that is shown."""
    from penstock.cli.kafka_client import Place

    for member in members:
        for text in member["assigned"]:
            topic, _, number = text.rpartition(":")
            if topic:  # tasks of a streams group have no topic
                yield Place(topic, int(number))


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
    """Return the partitions assigned to a consumer; assignments of other clients are opaque."""
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
    from penstock.wire.kafka.generated.consumer_group_describe import ConsumerGroupDescribeRequest

    request = ConsumerGroupDescribeRequest(group_ids=[known.name])
    return _newer_group(session, known, _CONSUMER_GROUP_DESCRIBE, request)


def _share_group(session: Session, known: Known) -> Described:
    from penstock.wire.kafka.generated.share_group_describe import ShareGroupDescribeRequest

    request = ShareGroupDescribeRequest(group_ids=[known.name])
    return _newer_group(session, known, _SHARE_GROUP_DESCRIBE, request)


def _streams_group(session: Session, known: Known) -> Described:
    from penstock.wire.kafka.generated.streams_group_describe import StreamsGroupDescribeRequest

    request = StreamsGroupDescribeRequest(group_ids=[known.name])
    return _newer_group(session, known, _STREAMS_GROUP_DESCRIBE, request)


def _newer_group(session: Session, known: Known, key: int, request: Any) -> Described:
    """Describe a group whose members are assigned by the server."""
    from penstock.cli.kafka_client import check

    (found,) = session.kafka.call(key, request, node=known.node).groups
    check(f"cannot show group '{known.name}'", found.error_code, found.error_message)
    members = [
        {
            "member_id": member.member_id,
            "instance_id": getattr(member, "instance_id", None),
            "client_id": member.client_id,
            "host": member.client_host.removeprefix("/"),
            "assigned": _shares(member.assignment),
            "epoch": member.member_epoch,
        }
        for member in found.members
    ]
    item = {
        "name": known.name,
        "type": known.type,
        "state": found.group_state,
        "assignor": getattr(found, "assignor_name", "sticky"),
        "epoch": found.group_epoch,
    }
    return item, members


def _shares(assignment: Any) -> list[str]:
    """Return partitions as TOPIC:NUMBER, or tasks of a streams group as SUBTOPOLOGY_NUMBER."""
    tasks = getattr(assignment, "active_tasks", None)
    if tasks is not None:
        return sorted(f"{each.subtopology_id}_{n}" for each in tasks for n in each.partitions)
    found = assignment.topic_partitions
    return sorted(f"{each.topic_name}:{number}" for each in found for number in each.partitions)


@group.command()
@click.argument("names", nargs=-1)
@click.option("--watch", is_flag=True, help="again and again until Ctrl-C")
@click.option(
    "--interval",
    type=quantity.some_seconds(0.1, 3_600),
    default="2s",
    show_default=True,
    metavar="DURATION",
)
@click.option("--samples", type=click.IntRange(min=1), help="with --watch: stop after so many")
@pass_session
def lag(
    session: Session, names: tuple[str, ...], watch: bool, interval: float, samples: int | None
) -> None:
    """Show how far some groups, or all, are behind: in records and in seconds.

    Bookkeeping groups of the Spark pipeline have no lag; they are shown if named. BEHIND is the
    age of the first record that is not committed.
    """
    from penstock.cli import group_lag

    known = {each.name: each for each in known_groups(session)}
    for name in names:
        if name not in known:
            _find(session, name)
    wanted = list(names) or sorted(name for name in known if not is_bookkeeping_group(name))

    def standing_of(name: str) -> "Standing":
        return _standing(session, known[name], _described(session, known[name])[1])

    if watch:
        group_lag.watch(session, wanted, standing_of, interval_s=interval, samples_max=samples)
        return
    rows = group_lag.rows(session.kafka, wanted, standing_of)
    empty = "no committed offsets" if wanted else "no groups"
    session.out.many(rows, columns=group_lag.COLUMNS, name="group", empty=empty)


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

    TIME is like 2026-01-31T12:00:00Z, or -90m for so long ago: the first record at or behind it;
    -10 is ten before the end. An offset outside of a partition becomes its nearest end.
    """
    import time

    from penstock.cli.group_offsets import commit, committed
    from penstock.cli.log_place import offsets_at, target_of

    now_ms = int(time.time() * 1_000)
    target = target_of(to, now_ms, what="cannot reset to", option="--to")
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
    after, _ = offsets_at(session.kafka, sorted(set(places)), target, what=what)
    if not dry_run:
        commit(session.kafka, name, after, what=what)
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
