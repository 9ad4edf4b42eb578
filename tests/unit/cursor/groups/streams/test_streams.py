"""Streams groups: what members are told, who is rejected, and what outlives a restart."""

import msgspec
import pytest
from tests.unit.cursor.groups.harness import SECOND, Shell, topics_of, view_of
from tests.unit.cursor.groups.streams.streams_topologies import (
    ALL_TASKS,
    COUNTED,
    COUNTING,
    beat,
    part,
    tasks,
    topology,
)

from penstock.cursor import coordinator_calls as calls
from penstock.cursor.groups.decision import Decision, Reply
from penstock.cursor.groups.offsets import CommitReply
from penstock.cursor.groups.settings import (
    STREAMS_ASSIGNMENT,
    STREAMS_DELAY,
    STREAMS_HEARTBEAT,
    STREAMS_SESSION,
    STREAMS_STANDBYS,
    GroupSettings,
)
from penstock.cursor.groups.share import ShareHeartbeat, ShareReply
from penstock.cursor.groups.streams import task_assignor
from penstock.cursor.groups.streams.streams import StreamsGroup
from penstock.cursor.groups.streams.streams_requests import (
    StatusCode,
    StreamsHeartbeat,
    StreamsReply,
)
from penstock.cursor.groups.streams.task_assignor import (
    ACTIVE,
    STANDBY,
    AssignmentInput,
    Tasks,
    compute_assignment,
    of_role,
    with_role,
)
from penstock.model.limits import (
    STREAMS_MEMBER_BYTES_MAX,
    STREAMS_TASKS_AT_ONCE_MAX,
    STREAMS_TOPOLOGY_BYTES_MAX,
)
from penstock.wire.kafka.faults import ErrorCode

NOTHING: Tasks = frozenset()


def set_config(shell: Shell, name: str, value: str) -> None:
    ticket = shell.decide(shell.groups.change_configs, calls.ChangeConfigs("g", {name: value}))
    assert shell.reply(ticket, Reply).code == ErrorCode.NONE


def codes(reply: StreamsReply) -> list[StatusCode]:
    return [status.code for status in reply.statuses]


def delete_group(shell: Shell) -> ErrorCode:
    ticket = shell.decide(shell.groups.delete_group, calls.DeleteGroup("g"))
    return shell.reply(ticket, Reply).code


# ── Members ──────────────────────────────────────────────────────────────────────────────────
def test_the_only_member_gets_all_tasks() -> None:
    shell = Shell()
    reply = beat(shell, "m", 0)
    assert (reply.code, reply.statuses, reply.missing) == (ErrorCode.NONE, (), ())
    assert reply.assignment == (ALL_TASKS, NOTHING)
    assert (reply.member_epoch, reply.heartbeat_ms) == (2, 5 * SECOND)
    again = beat(shell, "m", 2, active=ALL_TASKS)
    assert (again.assignment, again.member_epoch) == (None, 2)
    assert shell.groups.describe("g").state == "Stable"
    shell.check_replay()


def test_a_second_member_gets_tasks_after_the_first_has_given_them_up() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    joined = beat(shell, "b", 0)
    assert joined.assignment == (NOTHING, NOTHING)
    asked = beat(shell, "a", 2)
    assert asked.assignment is not None
    kept = asked.assignment[0]
    assert (len(kept), asked.member_epoch) == (3, 2), "the epoch stays until it has given them up"
    assert beat(shell, "b", 3).assignment is None, "they are not free yet"
    assert shell.groups.describe("g").state == "Reconciling"
    assert beat(shell, "a", 2, active=kept).member_epoch == 3
    assert beat(shell, "b", 3).assignment == (ALL_TASKS - kept, NOTHING)
    assert shell.groups.describe("g").state == "Stable"
    shell.check_replay()


def test_a_member_that_does_not_give_up_in_time_is_out() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    beat(shell, "b", 0)
    for _ in range(6):
        assert beat(shell, "a", 2, active=ALL_TASKS).code == ErrorCode.NONE
        assert beat(shell, "b", 3).assignment is None
        shell.advance(5 * SECOND)
    assert beat(shell, "a", 2, active=ALL_TASKS).code == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(shell, "b", 3).assignment == (ALL_TASKS, NOTHING)


def test_a_silent_member_is_out_after_its_session() -> None:
    shell = Shell()
    set_config(shell, STREAMS_SESSION, "7000")
    set_config(shell, STREAMS_HEARTBEAT, "2000")
    assert beat(shell, "a", 0).heartbeat_ms == 2_000
    shell.advance(6_999)
    assert beat(shell, "a", 2).code == ErrorCode.NONE
    shell.advance(7_000)
    assert beat(shell, "a", 2).code == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.groups.describe("g").state == "Empty"


def test_a_lost_reply_is_given_again() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    kept = beat(shell, "b", 0).assignment
    assert kept is not None
    given_up = beat(shell, "a", 2).assignment
    assert given_up is not None
    beat(shell, "a", 2, active=given_up[0])  # at epoch 3 now, but it never heard of it
    again = beat(shell, "a", 2, active=given_up[0])
    assert (again.code, again.member_epoch, again.assignment) == (ErrorCode.NONE, 3, given_up)
    assert beat(shell, "a", 2, active=ALL_TASKS).code == ErrorCode.FENCED_MEMBER_EPOCH


def test_members_at_another_epoch_are_fenced() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    newer = beat(shell, "a", 9)
    assert newer.code == ErrorCode.FENCED_MEMBER_EPOCH
    assert newer.message is not None
    assert "greater member epoch (9)" in newer.message
    assert beat(shell, "a", 1).code == ErrorCode.FENCED_MEMBER_EPOCH
    for epoch in (1, 9):  # also a member that reports no tasks which it should not have
        assert beat(shell, "a", epoch, active=NOTHING).code == ErrorCode.FENCED_MEMBER_EPOCH
    assert beat(shell, "other", 1).code == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(shell, "other", -1).code == ErrorCode.UNKNOWN_MEMBER_ID
    assert beat(shell, "a", 1, group="none").code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_member_that_leaves_is_gone_at_once_and_may_come_back() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    beat(shell, "b", 0)
    left = beat(shell, "a", -1)
    assert (left.code, left.member_epoch) == (ErrorCode.NONE, -1)
    assert beat(shell, "b", 3).assignment == (ALL_TASKS, NOTHING)
    assert beat(shell, "a", 0).code == ErrorCode.NONE
    shell.check_replay()


def test_a_member_that_joins_again_owns_nothing() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    beat(shell, "b", 0)
    again = beat(shell, "a", 0)
    assert again.assignment is not None
    assert len(again.assignment[0]) == 3
    assert beat(shell, "b", 3).assignment == (ALL_TASKS - again.assignment[0], NOTHING)


def test_a_group_has_a_bounded_number_of_members() -> None:
    shell = Shell(GroupSettings(initial_delay_ms=0, members_max=1))
    beat(shell, "a", 0)
    full = beat(shell, "b", 0)
    assert full.code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert full.message == "The streams group has reached its maximum capacity of 1 members."
    assert beat(shell, "a", 0).code == ErrorCode.NONE


# ── Malformed ────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("epoch", "fields", "text"),
    [
        (0, {"instance_id": "i"}, "Static membership is not yet supported."),
        (0, {"has_offsets": True}, "TaskOffsets are not supported yet."),
        (0, {"has_end_offsets": True}, "TaskEndOffsets are not supported yet."),
        (0, {"has_patterns": True}, "Regular expressions for source topics are not supported yet."),
        (0, {"rack_id": ""}, "RackId can't be empty."),
        (0, {"rebalance_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        (0, {"topology": None}, "Topology must be non-null when (re-)joining."),
        (0, {"active": tasks("0", 1)}, "ActiveTasks must be empty when (re-)joining."),
        (0, {"standby": tasks("0", 1)}, "StandbyTasks must be empty when (re-)joining."),
        (-2, {}, "InstanceId can't be null."),
        (-3, {}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        (2, {"topology": COUNTING}, "Topology can only be provided when (re-)joining."),
        (2, {"active": tasks("7", 1)}, "Subtopology 7 does not exist in the topology."),
        (
            2,
            {"active": tasks("0", 3)},
            "Task 3 for subtopology 0 is invalid. Number of tasks for this subtopology: 3",
        ),
        (
            2,
            {"client_tags": (("k", "v" * STREAMS_MEMBER_BYTES_MAX),)},
            "The member's metadata exceeds 16,384 bytes. Shorten its tags.",
        ),
    ],
)
def test_malformed_heartbeats_are_rejected(
    epoch: int, fields: dict[str, object], text: str
) -> None:
    shell = Shell()
    if epoch:
        beat(shell, "m", 0)
    before = list(shell.log)
    reply = beat(shell, "m", epoch, **fields)  # type: ignore[arg-type]
    assert (reply.code, reply.message) == (ErrorCode.INVALID_REQUEST, text)
    assert shell.log == before
    assert bool(epoch) == (shell.groups.describe("g").code == ErrorCode.NONE)


def test_warm_up_tasks_and_half_told_tasks_are_rejected() -> None:
    shell = Shell()
    beat(shell, "m", 0)
    for fields, text in (
        (
            {"active": NOTHING, "standby": NOTHING, "warmup": tasks("0", 1)},
            "WarmupTasks are not supported yet.",
        ),
        ({"active": NOTHING}, "If one task-type is non-null, all must be non-null."),
    ):
        reply = _raw(shell, **fields)
        assert (reply.code, reply.message) == (ErrorCode.INVALID_REQUEST, text)


def _raw(shell: Shell, **fields: object) -> StreamsReply:
    request = StreamsHeartbeat("m", 2, **fields)  # type: ignore[arg-type]
    ticket = shell.decide(shell.groups.beat, calls.BeatStreams("g", request), COUNTED)
    return shell.reply(ticket, StreamsReply)


# ── Topology ─────────────────────────────────────────────────────────────────────────────────
def test_invalid_topologies_leave_no_group_behind() -> None:
    shell = Shell()
    loop = topology(part("0", repartitions={"r": 0}, sinks=("r",)))
    for given, code in (
        (loop, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        (msgspec.structs.replace(COUNTING, epoch=-1), ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH),
        (
            topology(part("0", "x" * STREAMS_TOPOLOGY_BYTES_MAX)),
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
        ),
    ):
        assert beat(shell, "m", 0, topology=given).code == code
        assert shell.groups.describe("g").code == ErrorCode.GROUP_ID_NOT_FOUND
    assert not shell.log


def test_a_newer_topology_is_rejected_and_an_older_one_is_called_stale() -> None:
    shell = Shell()
    newer = msgspec.structs.replace(COUNTING, epoch=3)
    beat(shell, "a", 0, topology=newer)
    for other in (msgspec.structs.replace(COUNTING, epoch=4), topology(part("0", "x"), epoch=3)):
        reply = beat(shell, "b", 0, topology=other)
        assert (reply.code, reply.message) == (
            ErrorCode.INVALID_REQUEST,
            "Topology updates are not supported yet.",
        )
    stale = beat(shell, "b", 0, topology=COUNTING)
    assert codes(stale) == [StatusCode.STALE_TOPOLOGY]
    assert stale.statuses[0].detail == (
        "The member's topology epoch 0 is behind the group's topology epoch 3."
    )
    assert codes(beat(shell, "b", stale.member_epoch)) == [StatusCode.STALE_TOPOLOGY]


def test_missing_topics_are_told_until_they_exist() -> None:
    shell = Shell()
    first = beat(shell, "m", 0, topics=topics_of(1))
    assert codes(first) == [StatusCode.MISSING_SOURCE_TOPICS]
    assert first.assignment == (NOTHING, NOTHING)
    assert shell.groups.describe("g").state == "NotReady"
    second = beat(shell, "m", first.member_epoch, topics=topics_of(2, lines=3))
    assert codes(second) == [StatusCode.MISSING_INTERNAL_TOPICS]
    assert [topic.name for topic in second.missing] == ["by-word", "counts"]
    third = beat(shell, "m", second.member_epoch, topics=COUNTED_LATER)
    assert (codes(third), third.assignment) == ([], (ALL_TASKS, NOTHING))
    # A topic is deleted: its tasks are taken back.
    gone = beat(shell, "m", third.member_epoch, topics=topics_of(4, lines=3))
    assert gone.assignment == (NOTHING, NOTHING)
    shell.check_replay()


COUNTED_LATER = topics_of(3, **{"lines": 3, "by-word": 3, "counts": 3})


def test_other_topics_change_nothing() -> None:
    shell = Shell()
    beat(shell, "m", 0)
    rows = len(shell.log)
    more = topics_of(2, **{"lines": 3, "by-word": 3, "counts": 3, "other": 1})
    assert beat(shell, "m", 2, topics=more).assignment is None
    assert len(shell.log) == rows


# ── Delays and configs ───────────────────────────────────────────────────────────────────────
def test_the_first_assignment_waits_for_more_members() -> None:
    shell = Shell()
    set_config(shell, STREAMS_DELAY, "3000")
    first = beat(shell, "a", 0)
    assert (first.member_epoch, first.assignment) == (1, (NOTHING, NOTHING))
    assert codes(first) == [StatusCode.ASSIGNMENT_DELAYED]
    assert first.statuses[0].detail == (
        "Assignment delayed due to the configured initial rebalance delay."
    )
    shell.advance(2_999)
    assert codes(beat(shell, "b", 0)) == [StatusCode.ASSIGNMENT_DELAYED]
    shell.advance(1)
    assigned = [beat(shell, name, 1).assignment for name in "ab"]
    assert [len(each[0]) for each in assigned if each is not None] == [3, 3]
    # The delay is over for members that come later.
    assert codes(beat(shell, "c", 0)) == []


def test_assignments_keep_their_distance() -> None:
    shell = Shell()
    set_config(shell, STREAMS_ASSIGNMENT, "1000")
    beat(shell, "a", 0)
    second = beat(shell, "b", 0)
    assert codes(second) == [StatusCode.ASSIGNMENT_DELAYED]
    assert second.statuses[0].detail == (
        "Assignment delayed due to the configured assignment interval."
    )
    shell.advance(1_000)
    assert codes(beat(shell, "b", second.member_epoch)) == []


def test_a_topology_without_subtopologies_has_no_tasks() -> None:
    shell = Shell()
    joined = beat(shell, "a", 0, topology=topology())
    assert (joined.code, joined.assignment, codes(joined)) == (
        ErrorCode.NONE,
        (NOTHING, NOTHING),
        [],
    )
    assert shell.groups.describe("g").state == "Stable"


@pytest.mark.parametrize("epoch", [-3, -2])
def test_a_wrong_epoch_is_told_before_an_unknown_group(epoch: int) -> None:
    assert beat(Shell(), "a", epoch).code == ErrorCode.INVALID_REQUEST


# ── Large groups ─────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_assignor, "STREAMS_TASKS_AT_ONCE_MAX", 0)


def settle(shell: Shell) -> None:
    """What the thread of a coordinator does."""
    work = shell.groups.pending_assignment("g")
    assert work is not None
    shell.decide(shell.groups.take_assignment, compute_assignment(work))


def test_a_group_is_large_by_its_tasks_with_copies_or_by_its_members() -> None:
    most = STREAMS_TASKS_AT_ONCE_MAX
    one = ("m", "p", None)
    assert not AssignmentInput("g", 1, {"0": most - 1}, frozenset(), 0, (one,)).is_large
    assert AssignmentInput("g", 1, {"0": most}, frozenset(), 0, (one,)).is_large
    assert AssignmentInput("g", 1, {"0": most // 2}, frozenset(), 1, (one,)).is_large
    assert AssignmentInput("g", 1, {}, frozenset(), 0, (one,) * (most + 1)).is_large
    held = with_role(ACTIVE, [("0", number) for number in range(most)])
    assert AssignmentInput("g", 1, {}, frozenset(), 0, (("m", "p", held),)).is_large


@pytest.mark.usefixtures("all_are_large")
def test_members_of_a_large_group_get_tasks_with_the_next_heartbeat() -> None:
    shell = Shell()
    first = beat(shell, "a", 0)
    assert (first.member_epoch, first.assignment) == (1, (NOTHING, NOTHING))
    assert codes(first) == [StatusCode.ASSIGNMENT_DELAYED]
    assert shell.groups.describe("g").state == "Assigning"
    settle(shell)
    assert shell.groups.pending_assignment("g") is None
    second = beat(shell, "a", 1)
    assert (second.member_epoch, second.assignment, codes(second)) == (2, (ALL_TASKS, NOTHING), [])
    shell.check_replay()


@pytest.mark.usefixtures("all_are_large")
def test_an_assignment_under_way_is_not_begun_anew_and_counts_for_its_epoch() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    work = shell.groups.pending_assignment("g")
    assert work is not None
    assert codes(beat(shell, "b", 0)) == [StatusCode.ASSIGNMENT_DELAYED]
    assert shell.groups.pending_assignment("g") is work
    shell.decide(shell.groups.take_assignment, compute_assignment(work))
    # The first assignment does not know b: the next heartbeat begins another one.
    assert beat(shell, "b", 1).assignment is None
    settle(shell)
    assert len(shell.groups.describe("g").streams_members[1].target) == 3
    shell.check_replay()


@pytest.mark.usefixtures("all_are_large")
def test_an_assignment_counts_only_for_members_and_topics_that_are_still_there() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    beat(shell, "b", 0)
    settle(shell)
    beat(shell, "a", 1)
    work = shell.groups.pending_assignment("g")
    assert work is not None
    beat(shell, "b", -1)
    shell.decide(shell.groups.take_assignment, compute_assignment(work))
    group = shell.groups._groups["g"].members
    assert isinstance(group, StreamsGroup)
    assert group._targets.keys() == {"a"}, "a row for b would never be deleted"
    shell.check_replay()
    old = shell.groups.describe("g").target_epoch
    beat(shell, "a", 2, topics=COUNTED)
    work = shell.groups.pending_assignment("g")
    assert work is not None
    beat(shell, "a", 2, topics=topics_of(2, lines=3))
    shell.decide(shell.groups.take_assignment, compute_assignment(work))
    assert shell.groups.describe("g").target_epoch == old, "the internal topics are gone"
    assert delete_group(shell) == ErrorCode.NON_EMPTY_GROUP
    beat(shell, "a", -1)
    assert delete_group(shell) == ErrorCode.NONE
    shell.decide(shell.groups.take_assignment, compute_assignment(work))
    assert shell.groups.describe("g").code == ErrorCode.GROUP_ID_NOT_FOUND


def test_standby_tasks_follow_their_config_and_are_in_another_process() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    beat(shell, "b", 0)
    set_config(shell, STREAMS_STANDBYS, "1")
    epochs = {"a": 2, "b": 3}
    owned = {"a": (ALL_TASKS, NOTHING), "b": (NOTHING, NOTHING)}
    for _ in range(4):
        for name in epochs:
            active, standby = owned[name]
            reply = beat(shell, name, epochs[name], active=active, standby=standby)
            assert reply.code == ErrorCode.NONE
            epochs[name] = reply.member_epoch
            owned[name] = reply.assignment or owned[name]
    assert owned["a"][0] | owned["b"][0] == ALL_TASKS
    assert owned["a"][1] == {task for task in owned["b"][0] if task[0] == "1"}
    assert owned["b"][1] == {task for task in owned["a"][0] if task[0] == "1"}
    shell.check_replay()


def test_the_threads_of_one_process_have_no_standby_tasks_of_each_other() -> None:
    shell = Shell()
    set_config(shell, STREAMS_STANDBYS, "1")
    for name in "ab":
        beat(shell, name, 0, process_id="one")
    found = shell.groups.describe("g")
    assert all(not of_role(STANDBY, member.target) for member in found.streams_members)


# ── Shutdown and endpoints ───────────────────────────────────────────────────────────────────
def test_everybody_is_told_of_a_shutdown_until_the_group_is_empty() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    beat(shell, "b", 0)
    assert codes(beat(shell, "a", 2, is_shutdown=True)) == [StatusCode.SHUTDOWN_APPLICATION]
    told = beat(shell, "b", 3)
    assert told.statuses[0].detail == (
        "Streams group member a encountered a fatal error and requested a shutdown for the entire"
        " application."
    )
    beat(shell, "a", -1)
    assert codes(beat(shell, "b", 3)) == [StatusCode.SHUTDOWN_APPLICATION]
    beat(shell, "b", -1)
    assert codes(beat(shell, "c", 0)) == []


def test_a_member_that_leaves_can_ask_for_a_shutdown() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    beat(shell, "b", 0)
    beat(shell, "a", -1, is_shutdown=True)
    assert codes(beat(shell, "b", 3)) == [StatusCode.SHUTDOWN_APPLICATION]


def test_endpoints_are_told_when_they_change() -> None:
    shell = Shell()
    first = beat(shell, "a", 0, endpoint=("here", 80))
    assert first.endpoints is not None
    (here,) = first.endpoints
    numbers = (0, 1, 2)
    assert (here.host, here.port) == ("here", 80)
    assert here.partitions() == ({"lines": numbers, "by-word": numbers}, {})
    same = beat(shell, "a", 2, endpoint_epoch=first.endpoint_epoch)
    assert same.endpoints is None
    beat(shell, "b", 0)
    assert beat(shell, "b", 3, endpoint_epoch=-1).endpoints == (here,)
    given_up = beat(shell, "a", 2, endpoint_epoch=first.endpoint_epoch)
    assert given_up.endpoint_epoch > first.endpoint_epoch
    assert given_up.endpoints is not None
    assert given_up.endpoints[0].partitions() != here.partitions()
    beat(shell, "a", -1)
    gone = beat(shell, "b", 3, endpoint_epoch=given_up.endpoint_epoch)
    assert gone.endpoints == ()


# ── Offsets ──────────────────────────────────────────────────────────────────────────────────
def test_commits_are_checked_by_member_and_epoch() -> None:
    shell = Shell()
    offsets = {("id-lines", 0): 7}
    beat(shell, "a", 0)
    assert shell.commit(offsets, member="a", generation=2) == ErrorCode.NONE
    assert shell.commit(offsets, member="a", generation=3) == ErrorCode.STALE_MEMBER_EPOCH
    assert shell.commit(offsets, member="x", generation=2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.commit(offsets) == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.commit(offsets, member="a", generation=2, knows_epochs=False) == (
        ErrorCode.UNSUPPORTED_VERSION
    )
    transactional = {"producer": (5, 0), "member": "a"}
    assert shell.commit(offsets, generation=2, **transactional) == ErrorCode.NONE  # type: ignore[arg-type]
    assert shell.commit(offsets, generation=3, **transactional) == ErrorCode.ILLEGAL_GENERATION  # type: ignore[arg-type]
    assert shell.commit(offsets, producer=(5, 0)) == ErrorCode.NONE, (
        "a producer that is not a member"
    )
    shell.end_transaction((5, 0), is_commit=True)
    assert shell.offset("id-lines") == 7
    beat(shell, "a", -1)
    assert shell.commit({("id-lines", 0): 9}) == ErrorCode.NONE, "an operator, while it is empty"
    assert shell.offset("id-lines") == 9


def test_an_older_epoch_commits_for_tasks_that_the_member_has_kept_since() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    beat(shell, "b", 0)
    kept = beat(shell, "a", 2).assignment
    assert kept is not None
    beat(shell, "a", 2, active=kept[0])  # at epoch 3
    moved = beat(shell, "b", 3).assignment
    assert moved is not None
    names = {"0": "id-lines", "1": "id-by-word"}
    mine = {(names[name], number): 1 for name, number in kept[0]}
    theirs = {(names[name], number): 1 for name, number in moved[0]}
    assert shell.commit(mine, member="a", generation=2) == ErrorCode.NONE
    assert shell.commit(mine, member="a", generation=1) == ErrorCode.STALE_MEMBER_EPOCH
    assert shell.commit(theirs, member="a", generation=2) == ErrorCode.STALE_MEMBER_EPOCH
    assert shell.commit({**mine, ("id-x", 0): 1}, member="a", generation=2) == (
        ErrorCode.STALE_MEMBER_EPOCH
    )
    assert shell.commit(theirs, member="b", generation=3) == ErrorCode.NONE
    shell.restart()
    assert shell.commit(mine, member="a", generation=2) == ErrorCode.NONE, "the rows say since when"


def test_offsets_are_read_and_deleted() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    shell.commit({("id-lines", 0): 7}, member="a", generation=2)
    fetched = shell.groups.fetch(calls.FetchOffsets("g", None, member_id="a", member_epoch=2))
    assert [each.offset for each in fetched.partitions] == [7]
    assert shell.groups.fetch(
        calls.FetchOffsets("g", None, member_id="a", member_epoch=1)
    ).code == (ErrorCode.STALE_MEMBER_EPOCH)
    assert delete_offset(shell) == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    beat(shell, "a", -1)
    assert delete_offset(shell) == ErrorCode.NONE
    assert shell.offset("id-lines") == -1


def delete_offset(shell: Shell) -> ErrorCode:
    ticket = shell.decide(
        shell.groups.delete_offsets, calls.DeleteOffsets("g", [("id-lines", "lines", 0)])
    )
    ((_, _, code),) = shell.reply(ticket, CommitReply).partitions
    return code


# ── Kinds ────────────────────────────────────────────────────────────────────────────────────
def test_a_streams_group_is_listed_and_described_as_one() -> None:
    shell = Shell()
    beat(shell, "a", 0, endpoint=("here", 80), client_tags=(("zone", "x"),), rack_id="r")
    (listed,) = shell.groups.list_groups(calls.ListGroups(kinds=["Streams"], states=["stable"]))
    assert (listed.kind, listed.protocol_type, listed.state) == ("streams", "streams", "Stable")
    assert shell.groups.list_groups(calls.ListGroups(kinds=["consumer", "classic", "share"])) == ()
    found = shell.groups.describe("g")
    assert (found.kind, found.epoch, found.target_epoch) == ("streams", 2, 2)
    assert found.topology == COUNTING
    assert found.partition_counts == {"lines": 3, "by-word": 3, "counts": 3}
    (member,) = found.streams_members
    assert of_role(ACTIVE, member.assigned) == of_role(ACTIVE, member.target) == ALL_TASKS
    assert (member.metadata.endpoint, member.metadata.rack_id) == (("here", 80), "r")


def test_other_kinds_of_members_are_turned_away() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    assert shell.beat(COUNTED, "c", 0, names=("lines",), owned=frozenset()).code == (
        ErrorCode.GROUP_ID_NOT_FOUND
    )
    assert shell.join().code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    shared = ShareHeartbeat("s", 0, None, ("lines",), "", "")
    ticket = shell.decide(shell.groups.beat, calls.BeatShare("g", shared), COUNTED)
    assert shell.reply(ticket, ShareReply).code == ErrorCode.GROUP_ID_NOT_FOUND
    assert shell.heartbeat("a", 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_streams_members_are_turned_away_by_other_kinds() -> None:
    shell = Shell()
    shell.beat(COUNTED, "c", 0, names=("lines",), owned=frozenset())
    assert beat(shell, "a", 0).code == ErrorCode.GROUP_ID_NOT_FOUND
    shell.beat(COUNTED, "c", -1)
    assert beat(shell, "a", 0).code == ErrorCode.GROUP_ID_NOT_FOUND, (
        "an empty consumer group stays one"
    )
    other = Shell()
    other.stable_group(1)
    assert beat(other, "a", 0).code == ErrorCode.GROUP_ID_NOT_FOUND


def test_an_empty_group_changes_between_classic_and_streams_and_keeps_its_offsets() -> None:
    shell = Shell()
    (member,), _ = shell.stable_group(1)
    shell.commit({("id-lines", 0): 5}, member=member, generation=1)
    shell.leave((member, None))
    assert beat(shell, "a", 0).code == ErrorCode.NONE
    assert shell.groups.describe("g").kind == "streams"
    assert shell.offset("id-lines") == 5
    shell.check_replay()
    beat(shell, "a", -1)
    assert shell.groups.describe("g").state == "Empty"
    assert shell.join().code == ErrorCode.NONE
    assert shell.groups.describe("g").kind == "classic"
    assert shell.offset("id-lines") == 5
    shell.check_replay()


def test_only_an_empty_group_is_deleted() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    shell.commit({("id-lines", 0): 5}, member="a", generation=2)
    assert delete_group(shell) == ErrorCode.NON_EMPTY_GROUP
    beat(shell, "a", -1)
    assert delete_group(shell) == ErrorCode.NONE
    assert shell.groups.describe("g").code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "group g" not in view_of(shell.groups)
    shell.check_replay()
    # A new group may have another topology.
    assert beat(shell, "a", 0, topology=topology(part("0", "lines"))).code == ErrorCode.NONE


def test_an_empty_group_expires_with_its_offsets() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    shell.commit({("id-lines", 0): 5}, member="a", generation=2)
    beat(shell, "a", -1)
    for days, code in ((6, ErrorCode.NONE), (8, ErrorCode.GROUP_ID_NOT_FOUND)):
        decision = Decision(wall_ms=shell.wall_ms + days * 24 * 3_600 * SECOND)
        shell.groups.expire(decision, topic_ids=lambda _g, _n: None)
        shell.take(decision)
        assert shell.groups.describe("g").code == code
    shell.check_replay()


def test_a_restart_keeps_members_and_their_tasks() -> None:
    shell = Shell()
    beat(shell, "a", 0)
    shell.restart()
    reply = beat(shell, "a", 2)
    assert (reply.code, reply.assignment, reply.member_epoch) == (ErrorCode.NONE, None, 2)
    shell.restart()
    shell.advance(46 * SECOND)
    assert beat(shell, "a", 2).code == ErrorCode.UNKNOWN_MEMBER_ID
