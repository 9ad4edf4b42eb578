"""Share groups: who gets which partitions, who is turned away, and what outlives a restart."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.cursor.groups.harness import SECOND, Shell, parts, topics_of, view_of

from penstock.cursor import coordinator_calls as calls
from penstock.cursor.groups.assignors import MemberSpec, Partitions
from penstock.cursor.groups.decision import Reply
from penstock.cursor.groups.settings import (
    SHARE_ASSIGNMENT,
    SHARE_HEARTBEAT,
    SHARE_LOCK,
    SHARE_RESET,
    SHARE_SESSION,
    GroupSettings,
)
from penstock.cursor.groups.share import ShareHeartbeat, ShareReply, assign_simple
from penstock.cursor.patterns.matches import Topics
from penstock.wire.kafka.faults import ErrorCode

TOPICS = topics_of(t=3, u=1)


def beat(
    shell: Shell,
    member: str,
    epoch: int,
    *names: str,
    group: str = "g",
    topics: Topics = TOPICS,
    rack: str | None = None,
) -> ShareReply:
    request = ShareHeartbeat(member, epoch, rack, names or None, "client", "/host")
    ticket = shell.decide(shell.groups.beat, calls.BeatShare(group, request), topics)
    return shell.reply(ticket, ShareReply)


def configure(shell: Shell, changes: Mapping[str, str | None], group: str = "g") -> ErrorCode:
    ticket = shell.decide(shell.groups.change_configs, calls.ChangeConfigs(group, changes))
    return shell.reply(ticket, Reply).code


# ── The assignor ─────────────────────────────────────────────────────────────────────────────
@st.composite
def subscriptions(draw: st.DrawFn) -> tuple[list[MemberSpec], dict[str, int]]:
    topics = draw(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 6), max_size=4))
    names = draw(st.sets(st.integers(0, 30), max_size=9))
    specs = []
    for name in names:
        subscribed = draw(st.frozensets(st.sampled_from("abcde")))
        current = draw(st.frozensets(st.tuples(st.sampled_from("abcde"), st.integers(0, 7))))
        specs.append(MemberSpec(f"m{name}", subscribed, current))
    return specs, topics


@settings(max_examples=200)
@given(subscriptions())
def test_every_partition_has_a_reader_and_every_reader_a_partition(
    case: tuple[list[MemberSpec], dict[str, int]],
) -> None:
    members, topics = case
    shares = assign_simple(members, topics)
    assert shares.keys() == {member.member_id for member in members}
    readers = Counter(tp for share in shares.values() for tp in share)
    read = {topic for member in members for topic in member.topic_ids if topic in topics}
    assert readers.keys() == {(topic, p) for topic in read for p in range(topics[topic])}
    for member in members:
        share = shares[member.member_id]
        assert {topic for topic, _ in share} <= member.topic_ids & topics.keys()
        assert bool(share) == bool(member.topic_ids & topics.keys())


@settings(max_examples=100)
@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.lists(st.frozensets(st.tuples(st.just("a"), st.integers(0, 20))), min_size=20, max_size=20),
)
def test_members_and_partitions_are_balanced(
    member_count: int, partition_count: int, currents: list[Partitions]
) -> None:
    members = [
        MemberSpec(f"m{n:02}", frozenset("a"), currents[n % len(currents)])
        for n in range(member_count)
    ]
    shares = assign_simple(members, {"a": partition_count})
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    readers = Counter(tp for share in shares.values() for tp in share)
    assert max(readers.values()) - min(readers.values()) <= 1
    assert len(readers) == partition_count
    if member_count <= partition_count:
        assert max(readers.values()) == 1


def test_members_stay_where_they_are_when_another_comes() -> None:
    before = assign_simple([MemberSpec(f"m{n}", frozenset("a")) for n in range(4)], {"a": 2})
    members = [MemberSpec(name, frozenset("a"), share) for name, share in before.items()]
    after = assign_simple([*members, MemberSpec("z", frozenset("a"))], {"a": 2})
    assert {name: after[name] for name in before} == before


# ── Members ──────────────────────────────────────────────────────────────────────────────────
def test_a_partition_is_read_by_several_members() -> None:
    shell = Shell()
    first = beat(shell, "a", 0, "u")
    assert (first.member_epoch, first.assignment, first.is_news) == (1, parts("u", 0), True)
    second = beat(shell, "b", 0, "u")
    assert (second.member_epoch, second.assignment) == (2, parts("u", 0))
    again = beat(shell, "a", 1)
    assert (again.member_epoch, again.is_news) == (2, False), "what it reads stays the same"


def test_partitions_move_as_members_come_and_go() -> None:
    shell = Shell()
    assert beat(shell, "a", 0, "t").assignment == parts("t", 0, 1, 2)
    other = beat(shell, "b", 0, "t")
    mine = beat(shell, "a", 1)
    assert mine.is_news
    assert mine.assignment | other.assignment == parts("t", 0, 1, 2)
    assert not mine.assignment & other.assignment
    assert beat(shell, "b", -1).member_epoch == -1
    assert beat(shell, "a", 2).assignment == parts("t", 0, 1, 2)


def test_a_topic_that_grows_or_comes_later_is_assigned_with_the_next_heartbeat() -> None:
    shell = Shell()
    assert beat(shell, "a", 0, "t", topics=topics_of(1)).assignment == frozenset()
    found = beat(shell, "a", 1, topics=topics_of(2, t=1))
    assert (found.assignment, found.is_news, found.member_epoch) == (parts("t", 0), True, 2)
    found = beat(shell, "a", 2, topics=topics_of(3, t=2, other=9))
    assert found.assignment == parts("t", 0, 1)
    found = beat(shell, "a", 3, topics=topics_of(4, t=2))
    assert (found.is_news, found.member_epoch) == (False, 3), "a topic that nobody reads"


def test_a_changed_subscription_is_assigned_at_once() -> None:
    shell = Shell()
    beat(shell, "a", 0, "t")
    found = beat(shell, "a", 1, "u")
    assert (found.assignment, found.member_epoch) == (parts("u", 0), 2)
    assert beat(shell, "a", 2, "u").is_news, "who names its topics is told its partitions"


def test_an_answer_that_was_lost_is_given_again() -> None:
    shell = Shell()
    beat(shell, "a", 0, "t")
    beat(shell, "b", 0, "t")
    assert beat(shell, "a", 1).member_epoch == 2
    assert beat(shell, "a", 1).member_epoch == 2
    beat(shell, "b", -1)
    beat(shell, "a", 2)
    assert beat(shell, "a", 1).code is ErrorCode.FENCED_MEMBER_EPOCH
    assert beat(shell, "a", 9).code is ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize(
    ("member", "epoch", "names", "rack", "code"),
    [
        ("", 0, ("t",), None, ErrorCode.INVALID_REQUEST),
        ("a", 0, (), None, ErrorCode.INVALID_REQUEST),
        ("a", -2, (), None, ErrorCode.INVALID_REQUEST),
        ("a", 0, ("t",), "", ErrorCode.INVALID_REQUEST),
        ("a", 1, (), None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", -1, (), None, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_what_makes_no_sense_is_refused(
    member: str, epoch: int, names: tuple[str, ...], rack: str | None, code: ErrorCode
) -> None:
    shell = Shell()
    beat(shell, "z", 0, "t")
    found = beat(shell, member, epoch, *names, rack=rack)
    assert (found.code, bool(found.message)) == (code, True)


def test_a_refused_first_member_leaves_no_group_behind() -> None:
    shell = Shell()
    assert beat(shell, "a", 0).code is ErrorCode.INVALID_REQUEST
    assert beat(shell, "a", 1).code is ErrorCode.GROUP_ID_NOT_FOUND
    assert beat(shell, "a", 0, "t", group="").code is ErrorCode.INVALID_GROUP_ID
    assert shell.groups.list_groups(calls.ListGroups()) == ()
    assert shell.log == []


def test_a_full_group_takes_nobody_else() -> None:
    shell = Shell(GroupSettings(share_members_max=2))
    beat(shell, "a", 0, "t")
    beat(shell, "b", 0, "t")
    assert beat(shell, "c", 0, "t").code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert beat(shell, "a", 0, "t").code is ErrorCode.NONE, "who is in may join again"


def test_who_is_silent_too_long_is_out() -> None:
    shell = Shell()
    beat(shell, "a", 0, "t")
    shell.advance(30 * SECOND)
    other = beat(shell, "b", 0, "t")
    shell.advance(16 * SECOND)
    assert beat(shell, "a", 1).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(shell, "b", other.member_epoch).assignment == parts("t", 0, 1, 2)
    shell.advance(46 * SECOND)
    assert shell.groups.describe("g").state == "Empty"


# ── Kinds ────────────────────────────────────────────────────────────────────────────────────
def test_a_share_group_never_becomes_another_kind() -> None:
    shell = Shell()
    beat(shell, "a", 0, "t")
    for _ in range(2):
        assert shell.join("g").code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        found = shell.beat(TOPICS, "b", 0, names=("t",), owned=frozenset())
        assert found.code is ErrorCode.GROUP_ID_NOT_FOUND
        assert shell.commit({("t", 0): 1}) is ErrorCode.GROUP_ID_NOT_FOUND
        assert shell.commit({("t", 0): 1}, producer=(1, 0)) is ErrorCode.GROUP_ID_NOT_FOUND
        assert (
            shell.groups.fetch(calls.FetchOffsets("g", None)).code is ErrorCode.GROUP_ID_NOT_FOUND
        )
        beat(shell, "a", -1)  # and no more when it is empty


def test_other_groups_never_become_share_groups() -> None:
    shell = Shell()
    shell.stable_group(1)
    shell.commit({("t", 0): 1}, group="offsets")
    shell.beat(TOPICS, "b", 0, names=("t",), owned=frozenset(), group="consumer")
    for group in ("g", "offsets", "consumer"):
        assert beat(shell, "a", 0, "t", group=group).code is ErrorCode.GROUP_ID_NOT_FOUND


def test_share_groups_are_listed_and_described() -> None:
    shell = Shell()
    beat(shell, "a", 0, "t", "u", rack="r")
    (listed,) = shell.groups.list_groups(calls.ListGroups(kinds=["Share"]))
    assert (listed.protocol_type, listed.state, listed.kind) == ("share", "Stable", "share")
    assert shell.groups.list_groups(calls.ListGroups(kinds=["classic", "consumer"])) == ()
    found = shell.groups.describe("g")
    assert (found.kind, found.state, found.epoch, found.assignor) == (
        "share",
        "Stable",
        1,
        "simple",
    )
    (member,) = found.share_members
    known = member.metadata
    assert (known.rack_id, known.client_id, known.client_host) == ("r", "client", "/host")
    assert (known.topic_names, len(member.assigned)) == (("t", "u"), 4)


def test_only_an_empty_share_group_is_deleted() -> None:
    shell = Shell()
    beat(shell, "a", 0, "t")

    def delete() -> ErrorCode:
        ticket = shell.decide(shell.groups.delete_group, calls.DeleteGroup("g"))
        return shell.reply(ticket, Reply).code

    assert delete() is ErrorCode.NON_EMPTY_GROUP
    beat(shell, "a", -1)
    assert delete() is ErrorCode.NONE
    assert delete() is ErrorCode.GROUP_ID_NOT_FOUND
    assert view_of(shell.groups).keys() == {"fences"}
    shell.check_replay()


def test_a_share_group_stays_until_it_is_deleted() -> None:
    shell = Shell()
    beat(shell, "a", 0, "t")
    beat(shell, "a", -1)
    shell.advance(400 * 24 * 3_600 * SECOND)
    shell.decide(shell.groups.expire, topic_ids=lambda *_: None)
    assert shell.groups.describe("g").kind == "share"


# ── What outlives a restart ──────────────────────────────────────────────────────────────────
def test_after_a_restart_members_join_again_at_a_higher_epoch() -> None:
    shell = Shell()
    beat(shell, "a", 0, "t")
    before = beat(shell, "b", 0, "t")
    shell.restart()
    assert shell.groups.describe("g").state == "Empty"
    assert beat(shell, "b", before.member_epoch).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(shell, "b", 0, "t").member_epoch > before.member_epoch
    shell.check_replay()


def test_configs_hold_for_groups_that_come_later_and_outlive_a_restart() -> None:
    shell = Shell()
    changes = {
        SHARE_LOCK: "2000",
        SHARE_RESET: "earliest",
        SHARE_SESSION: "6000",
        SHARE_HEARTBEAT: "1000",
    }
    assert configure(shell, changes) is ErrorCode.NONE
    shell.restart()
    shell.check_replay()
    found = beat(shell, "a", 0, "t").settings
    assert (found.lock_ms, found.session_ms, found.heartbeat_ms) == (2_000, 6_000, 1_000)
    assert found.is_earliest
    shell.advance(7 * SECOND)
    assert beat(shell, "a", 1).code is ErrorCode.UNKNOWN_MEMBER_ID, "a shorter session"
    assert configure(shell, {SHARE_LOCK: None}) is ErrorCode.NONE
    assert beat(shell, "a", 0, "t").settings.lock_ms == 30_000
    assert SHARE_LOCK not in shell.groups.configs("g")
    configure(shell, dict.fromkeys(changes))
    assert shell.groups.configs("g") == {}
    shell.check_replay()


def test_configs_are_bounded() -> None:
    shell = Shell(GroupSettings(configs_max=1))
    assert configure(shell, {SHARE_LOCK: "2000"}, "one") is ErrorCode.NONE
    assert configure(shell, {SHARE_LOCK: "2000"}, "two") is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert configure(shell, {SHARE_LOCK: "3000"}, "one") is ErrorCode.NONE
    assert configure(shell, {SHARE_LOCK: "2000"}, "") is ErrorCode.INVALID_GROUP_ID


def test_an_assignment_is_kept_for_its_interval() -> None:
    shell = Shell()
    configure(shell, {SHARE_ASSIGNMENT: "2000"})
    first = beat(shell, "a", 0, "t")
    second = beat(shell, "b", 0, "t")
    assert (second.member_epoch, second.assignment) == (first.member_epoch, frozenset())
    shell.advance(2 * SECOND)
    after = beat(shell, "b", second.member_epoch)
    assert after.member_epoch == first.member_epoch + 1
    assert after.assignment
    assert after.is_news
    shell.check_replay()


def test_a_share_group_is_made_without_members() -> None:
    shell = Shell()
    ticket = shell.decide(shell.groups.make_share, calls.MakeShareGroup("g"))
    assert shell.reply(ticket, Reply).code is ErrorCode.NONE
    rows = len(shell.log)
    ticket = shell.decide(shell.groups.make_share, calls.MakeShareGroup("g"))
    assert (shell.reply(ticket, Reply).code, len(shell.log)) == (ErrorCode.NONE, rows)
    shell.restart()
    assert shell.groups.describe("g").state == "Empty"
    assert beat(shell, "a", 0, "t").code is ErrorCode.NONE
    shell.check_replay()
