"""Consumer groups that the coordinator assigns: stories, and every refusal."""

from collections.abc import Callable

import pytest
from tests.unit.cursor.groups.harness import SECOND, Shell, parts, topics_of

from penstock.cursor import coordinator_calls as calls
from penstock.cursor.groups.decision import Reply
from penstock.cursor.groups.settings import (
    CONSUMER_ASSIGNMENT,
    CONSUMER_HEARTBEAT,
    CONSUMER_SESSION,
    GroupSettings,
)
from penstock.wire.kafka.faults import ErrorCode

TOPICS = topics_of(t=4)
NOTHING = parts("t")


def joined(shell: Shell, member: str, **fields: object) -> int:
    reply = shell.beat(TOPICS, member, 0, names=("t",), owned=NOTHING, **fields)  # type: ignore[arg-type]
    assert reply.code == ErrorCode.NONE, reply
    return reply.member_epoch


def state(shell: Shell) -> str:
    return shell.groups.describe("g").state


def test_the_first_member_gets_everything_at_once() -> None:
    shell = Shell()
    reply = shell.beat(TOPICS, "a", 0, names=("t",), owned=NOTHING)
    assert (reply.member_epoch, reply.assignment) == (1, parts("t", 0, 1, 2, 3))
    assert reply.heartbeat_ms == 5 * SECOND
    assert state(shell) == "Stable"
    again = shell.beat(TOPICS, "a", 1)
    assert (again.member_epoch, again.assignment) == (1, None)
    shell.check_replay()


def test_a_second_member_takes_only_what_the_first_has_given_up() -> None:
    shell = Shell()
    joined(shell, "a")
    second = shell.beat(TOPICS, "b", 0, names=("t",), owned=NOTHING)
    assert (second.member_epoch, second.assignment) == (2, NOTHING)
    assert state(shell) == "Reconciling"
    # The first is told, at its old epoch, and keeps being told nothing new until it has obeyed.
    told = shell.beat(TOPICS, "a", 1)
    assert (told.member_epoch, told.assignment) == (1, parts("t", 0, 1))
    assert shell.beat(TOPICS, "a", 1).assignment is None
    assert shell.beat(TOPICS, "b", 2).assignment is None
    done = shell.beat(TOPICS, "a", 1, owned=parts("t", 0, 1))
    assert done.member_epoch == 2
    assert shell.beat(TOPICS, "b", 2).assignment == parts("t", 2, 3)
    assert state(shell) == "Stable"
    shell.check_replay()


def test_a_lost_answer_is_given_again_to_who_repeats_its_previous_epoch() -> None:
    shell = Shell()
    joined(shell, "a")
    joined(shell, "b")
    shell.beat(TOPICS, "a", 1)
    shell.beat(TOPICS, "a", 1, owned=parts("t", 0, 1))
    again = shell.beat(TOPICS, "a", 1, owned=parts("t", 0, 1), names=("t",))
    assert (again.member_epoch, again.assignment) == (2, parts("t", 0, 1))


def test_who_leaves_frees_its_partitions_for_the_next_heartbeat() -> None:
    shell = Shell()
    joined(shell, "a")
    joined(shell, "b")
    left = shell.beat(TOPICS, "a", -1)
    assert (left.code, left.member_epoch) == (ErrorCode.NONE, -1)
    assert shell.beat(TOPICS, "b", 2).assignment == parts("t", 0, 1, 2, 3)
    shell.check_replay()


def test_a_silent_member_is_out_after_its_session() -> None:
    shell = Shell()
    joined(shell, "a")
    shell.advance(30 * SECOND)
    joined(shell, "b")
    shell.advance(20 * SECOND)
    assert shell.beat(TOPICS, "a", 1).code == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.beat(TOPICS, "b", 2).assignment == parts("t", 0, 1, 2, 3)


def test_who_does_not_give_up_in_its_rebalance_time_is_out_though_it_beats() -> None:
    shell = Shell()
    joined(shell, "a", rebalance_ms=10 * SECOND)
    joined(shell, "b")
    for _ in range(3):
        assert shell.beat(TOPICS, "a", 1, rebalance_ms=-1).code == ErrorCode.NONE
        shell.advance(3 * SECOND)
    shell.advance(2 * SECOND)
    assert shell.beat(TOPICS, "a", 1).code == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.beat(TOPICS, "b", 2).assignment == parts("t", 0, 1, 2, 3)


def test_a_static_member_comes_back_under_another_id_to_what_it_had() -> None:
    shell = Shell()
    joined(shell, "a", instance="i")
    joined(shell, "b")
    shell.beat(TOPICS, "a", 1, instance="i")
    shell.beat(TOPICS, "a", 1, instance="i", owned=parts("t", 0, 1))
    shell.beat(TOPICS, "b", 2)
    epoch = shell.groups.describe("g").epoch
    assert shell.beat(TOPICS, "a", -2, instance="i").member_epoch == -2
    assert shell.beat(TOPICS, "b", 2).assignment is None  # nobody takes them meanwhile
    back = shell.beat(TOPICS, "a2", 0, names=("t",), owned=NOTHING, instance="i")
    assert (back.code, back.assignment) == (ErrorCode.NONE, parts("t", 0, 1))
    assert shell.groups.describe("g").epoch == epoch
    assert state(shell) == "Stable"
    fenced = shell.beat(TOPICS, "a", 2, instance="i")
    assert fenced.code == ErrorCode.FENCED_INSTANCE_ID
    shell.check_replay()


def test_a_static_member_that_stays_away_loses_its_place() -> None:
    shell = Shell()
    joined(shell, "a", instance="i")
    shell.beat(TOPICS, "a", -2, instance="i")
    shell.advance(40 * SECOND)
    joined(shell, "b")
    shell.advance(10 * SECOND)
    assert shell.beat(TOPICS, "b", 2).assignment == parts("t", 0, 1, 2, 3)


def test_a_fenced_member_joins_again_with_its_id_and_owns_nothing_first() -> None:
    shell = Shell()
    joined(shell, "a")
    joined(shell, "b")
    again = shell.beat(TOPICS, "a", 0, names=("t",), owned=NOTHING)
    assert (again.code, again.assignment) == (ErrorCode.NONE, parts("t", 0, 1))
    assert shell.beat(TOPICS, "b", 2).assignment == parts("t", 2, 3)


def test_new_partitions_are_assigned_with_the_next_heartbeat() -> None:
    shell = Shell()
    joined(shell, "a")
    reply = shell.beat(topics_of(2, t=6, u=3), "a", 1)
    assert (reply.member_epoch, reply.assignment) == (2, parts("t", 0, 1, 2, 3, 4, 5))
    # A topic nobody subscribes to changes nothing.
    assert shell.beat(topics_of(3, t=6, u=9), "a", 2).member_epoch == 2


def test_a_pattern_takes_in_topics_as_they_appear() -> None:
    shell = Shell()
    first = shell.beat(topics_of(1, audit=1, other=1), "a", 0, regex="a.*", owned=NOTHING)
    assert first.assignment == parts("audit", 0)
    grown = topics_of(2, audit=1, alarm=1, other=1)
    assert shell.beat(grown, "a", 1).assignment == parts("audit", 0) | parts("alarm", 0)
    shell.restart()
    assert shell.beat(grown, "a", 2).member_epoch == 2
    shell.check_replay()


def test_a_topic_that_was_deleted_and_made_again_is_another_topic() -> None:
    shell = Shell()
    joined(shell, "a")
    remade = TOPICS.__class__(2, {"t": ("id-new", 1)})
    told = shell.beat(remade, "a", 1)
    assert (told.member_epoch, told.assignment) == (1, frozenset())
    moved = shell.beat(remade, "a", 1, owned=frozenset())
    assert (moved.member_epoch, moved.assignment) == (2, frozenset({("id-new", 0)}))


def test_a_change_of_subscription_raises_the_epoch() -> None:
    shell = Shell()
    topics = topics_of(1, t=2, u=2)
    shell.beat(topics, "a", 0, names=("t",), owned=NOTHING)
    shell.beat(topics, "a", 1, names=("u", "t"))
    assert shell.groups.describe("g").epoch == 2
    shell.beat(topics, "a", 2, names=("t", "u"))  # the order says nothing
    assert shell.groups.describe("g").epoch == 2


def test_most_votes_choose_the_assignor() -> None:
    shell = Shell()
    topics = topics_of(1, t=2, u=2)
    for member, assignor in (("a", "range"), ("b", "range"), ("c", "uniform")):
        shell.beat(topics, member, 0, names=("t", "u"), owned=NOTHING, assignor=assignor)
    assert shell.groups.describe("g").assignor == "range"


def test_an_empty_group_changes_its_kind_and_keeps_its_offsets() -> None:
    shell = Shell()
    members, generation = shell.stable_group(1)
    shell.commit({("t", 0): 7}, member=members[0], generation=generation)
    shell.leave((members[0], None))
    joined(shell, "a")
    assert shell.groups.describe("g").kind == "consumer"
    assert shell.offset() == 7
    shell.check_replay()
    assert shell.join().code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    shell.beat(TOPICS, "a", -1)
    assert shell.join().code == ErrorCode.NONE
    assert shell.groups.describe("g").kind == "classic"
    assert shell.offset() == 7
    shell.check_replay()


def test_a_restart_gives_everyone_its_full_time_again() -> None:
    shell = Shell()
    joined(shell, "a", rebalance_ms=60 * SECOND)
    joined(shell, "b")
    shell.beat(TOPICS, "a", 1, rebalance_ms=-1)
    shell.advance(40 * SECOND)
    shell.restart()
    shell.advance(40 * SECOND)
    assert shell.beat(TOPICS, "a", 1, rebalance_ms=-1).code == ErrorCode.NONE
    shell.advance(25 * SECOND)  # it beats, but still has not given up
    assert shell.beat(TOPICS, "a", 1).code == ErrorCode.UNKNOWN_MEMBER_ID


CASES: dict[str, tuple[ErrorCode, Callable[[Shell], ErrorCode]]] = {
    "no member id": (ErrorCode.INVALID_REQUEST, lambda s: s.beat(TOPICS, "", 0, names=("t",)).code),
    "an epoch below -2": (ErrorCode.INVALID_REQUEST, lambda s: s.beat(TOPICS, "a", -3).code),
    "an epoch below -2 in an unknown group": (
        ErrorCode.INVALID_REQUEST,
        lambda s: s.beat(TOPICS, "a", -3, group="other").code,
    ),
    "an empty instance id": (
        ErrorCode.INVALID_REQUEST,
        lambda s: s.beat(TOPICS, "x", 0, owned=NOTHING, names=("t",), instance="").code,
    ),
    "an empty rack id": (
        ErrorCode.INVALID_REQUEST,
        lambda s: s.beat(TOPICS, "x", 0, owned=NOTHING, names=("t",), rack="").code,
    ),
    "a short leave without an instance": (
        ErrorCode.INVALID_REQUEST,
        lambda s: s.beat(TOPICS, "a", -2).code,
    ),
    "a join without a subscription": (
        ErrorCode.INVALID_REQUEST,
        lambda s: s.beat(TOPICS, "x", 0, owned=NOTHING).code,
    ),
    "a join without a rebalance time-out": (
        ErrorCode.INVALID_REQUEST,
        lambda s: s.beat(TOPICS, "x", 0, owned=NOTHING, names=("t",), rebalance_ms=-1).code,
    ),
    "a join that claims partitions": (
        ErrorCode.INVALID_REQUEST,
        lambda s: s.beat(TOPICS, "x", 0, names=("t",), owned=parts("t", 0)).code,
    ),
    "a join that does not name its partitions": (
        ErrorCode.INVALID_REQUEST,
        lambda s: s.beat(TOPICS, "x", 0, names=("t",)).code,
    ),
    "a join without a pattern or a name": (
        ErrorCode.NONE,
        lambda s: s.beat(TOPICS, "x", 0, regex="", owned=NOTHING).code,
    ),
    "an assignor nobody knows": (
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        lambda s: s.beat(TOPICS, "x", 0, owned=NOTHING, names=("t",), assignor="magic").code,
    ),
    "a pattern that is none": (
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        lambda s: s.beat(TOPICS, "x", 0, owned=NOTHING, regex="(a").code,
    ),
    "a group that is not there": (
        ErrorCode.GROUP_ID_NOT_FOUND,
        lambda s: s.beat(TOPICS, "a", 1, group="other").code,
    ),
    "a group without a name": (
        ErrorCode.INVALID_GROUP_ID,
        lambda s: s.beat(TOPICS, "a", 0, group="", names=("t",), owned=NOTHING).code,
    ),
    "a member that is not there": (
        ErrorCode.UNKNOWN_MEMBER_ID,
        lambda s: s.beat(TOPICS, "x", 1).code,
    ),
    "a leave of a member that is not there": (
        ErrorCode.UNKNOWN_MEMBER_ID,
        lambda s: s.beat(TOPICS, "x", -1).code,
    ),
    "an epoch to come": (ErrorCode.FENCED_MEMBER_EPOCH, lambda s: s.beat(TOPICS, "a", 9).code),
    "an epoch long past": (ErrorCode.FENCED_MEMBER_EPOCH, lambda s: s.beat(TOPICS, "b", 1).code),
    "an instance id that another member holds": (
        ErrorCode.UNRELEASED_INSTANCE_ID,
        lambda s: s.beat(TOPICS, "x", 0, owned=NOTHING, names=("t",), instance="i").code,
    ),
    "an instance id of another member": (
        ErrorCode.FENCED_INSTANCE_ID,
        lambda s: s.beat(TOPICS, "b", 2, instance="i").code,
    ),
    "a classic join while there are members": (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        lambda s: s.join().code,
    ),
    "a classic heartbeat": (ErrorCode.UNKNOWN_MEMBER_ID, lambda s: s.heartbeat("a", 1)),
    "a classic sync": (ErrorCode.UNKNOWN_MEMBER_ID, lambda s: s.sync("a", 1).code),
    "a classic leave": (ErrorCode.UNKNOWN_MEMBER_ID, lambda s: s.leave(("a", None))[0]),
    "a commit of another epoch": (
        ErrorCode.STALE_MEMBER_EPOCH,
        lambda s: s.commit({("t", 0): 1}, member="a", generation=9),
    ),
    "a commit of an unknown member": (
        ErrorCode.UNKNOWN_MEMBER_ID,
        lambda s: s.commit({("t", 0): 1}, member="x", generation=1),
    ),
    "a commit of a client that knows no epochs": (
        ErrorCode.UNKNOWN_MEMBER_ID,
        lambda s: s.commit({("t", 0): 1}, member="a", generation=1, knows_epochs=False),
    ),
    "a transactional commit of another epoch": (
        ErrorCode.ILLEGAL_GENERATION,
        lambda s: s.commit({("t", 0): 1}, member="a", generation=9, producer=(1, 0)),
    ),
    "a commit at the member's epoch is fine": (
        ErrorCode.NONE,
        lambda s: s.commit({("t", 0): 1}, member="a", generation=1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_answers_with_the_code_the_protocol_has_for(name: str) -> None:
    expected, case = CASES[name]
    shell = Shell()
    joined(shell, "a", instance="i")
    joined(shell, "b")
    assert case(shell) == expected
    shell.check_replay()


def test_a_malformed_join_leaves_a_classic_group_as_it_is() -> None:
    shell = Shell()
    (member,), generation = shell.stable_group(1)
    shell.leave((member, None))
    assert shell.beat(TOPICS, "x", 0, names=("t",)).code == ErrorCode.INVALID_REQUEST
    described = shell.groups.describe("g")
    assert (described.code, described.kind, described.state) == (ErrorCode.NONE, "classic", "Empty")
    assert described.generation == generation + 1
    shell.check_replay()


def test_rejections_have_the_texts_that_clients_show() -> None:
    shell = Shell()
    null = shell.beat(TOPICS, "x", 0, names=("t",))
    assert null.message == "TopicPartitions must be empty when (re-)joining."
    wrong = shell.beat(TOPICS, "x", 0, regex="(a", owned=NOTHING)
    assert wrong.message == (
        "SubscribedTopicRegex `(a` is not a valid regular expression: missing closing )."
    )


def test_an_empty_pattern_is_a_subscription_to_nothing() -> None:
    shell = Shell()
    joined = shell.beat(TOPICS, "x", 0, regex="", owned=NOTHING)
    assert (joined.code, joined.assignment) == (ErrorCode.NONE, NOTHING)
    shell.check_replay()


def test_patterns_as_librdkafka_wraps_them_are_assigned() -> None:
    shell = Shell()
    topics = topics_of(1, a1=1, b1=1, c1=1)
    joined = shell.beat(topics, "x", 0, regex="(^a.*)|(^b.*)", owned=NOTHING)
    assert joined.assignment == parts("a1", 0) | parts("b1", 0)
    shell.check_replay()


def test_a_full_group_takes_no_one_but_those_it_knows() -> None:
    shell = Shell(GroupSettings(members_max=1))
    joined(shell, "a")
    assert (
        shell.beat(TOPICS, "b", 0, owned=NOTHING, names=("t",)).code
        == ErrorCode.GROUP_MAX_SIZE_REACHED
    )
    assert joined(shell, "a") == 1


def test_a_refused_first_join_leaves_no_group_behind() -> None:
    shell = Shell()
    assert shell.beat(TOPICS, "a", 0, owned=NOTHING).code == ErrorCode.INVALID_REQUEST
    assert shell.groups.list_groups(calls.ListGroups()) == ()
    assert shell.log == []


# ── Configs of the group ─────────────────────────────────────────────────────────────────────
def configure(shell: Shell, **configs: str) -> None:
    names = {
        "session": CONSUMER_SESSION,
        "heartbeat": CONSUMER_HEARTBEAT,
        "assignment": CONSUMER_ASSIGNMENT,
    }
    changes = {names[name]: text for name, text in configs.items()}
    ticket = shell.decide(shell.groups.change_configs, calls.ChangeConfigs("g", changes))
    assert shell.reply(ticket, Reply).code is ErrorCode.NONE


def test_the_times_of_a_group_are_its_own() -> None:
    shell = Shell()
    configure(shell, session="10000", heartbeat="2000")
    reply = shell.beat(TOPICS, "a", 0, names=("t",), owned=NOTHING)
    assert reply.heartbeat_ms == 2 * SECOND
    shell.advance(9 * SECOND)
    assert shell.beat(TOPICS, "a", 1).code is ErrorCode.NONE
    shell.restart()
    shell.advance(9 * SECOND)
    assert shell.beat(TOPICS, "a", 1).code is ErrorCode.NONE
    shell.advance(11 * SECOND)
    assert shell.beat(TOPICS, "a", 1).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_session_that_is_not_heard_of_after_a_restart_ends_by_its_config() -> None:
    shell = Shell()
    configure(shell, session="10000")
    joined(shell, "a")
    shell.restart()
    shell.advance(11 * SECOND)
    assert shell.beat(TOPICS, "a", 1).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_assignment_is_kept_for_its_interval() -> None:
    shell = Shell()
    configure(shell, assignment="3000")
    assert joined(shell, "a") == 1
    assert joined(shell, "b") == 1, "the assignment is younger than the interval"
    assert state(shell) == "Assigning"
    shell.advance(2 * SECOND)
    assert shell.beat(TOPICS, "a", 1, owned=parts("t", 0, 1, 2, 3)).assignment is None
    shell.advance(1 * SECOND)
    given_up = shell.beat(TOPICS, "a", 1, owned=parts("t", 0, 1, 2, 3)).assignment
    assert given_up is not None
    assert len(given_up) == 2
    shell.check_replay()
