"""Lives of classic groups, told as stories."""

from tests.unit.cursor.groups.harness import SECOND, Shell

from penstock.cursor import coordinator_calls as calls
from penstock.cursor.groups.classic.classic_state import (
    BEFORE,
    JoinReply,
    State,
    SyncReply,
    SyncRequest,
)
from penstock.cursor.groups.settings import GroupSettings
from penstock.wire.kafka.faults import ErrorCode


def state(shell: Shell) -> str:
    return shell.groups.describe("g").state


def test_a_lone_member_joins_syncs_and_is_stable() -> None:
    shell = Shell()
    joined = shell.join()
    assert joined.code == ErrorCode.NONE
    assert (joined.generation, joined.leader, joined.protocol) == (1, joined.member_id, "range")
    assert joined.members == ((joined.member_id, None, b"m"),)
    assert state(shell) == "CompletingRebalance"
    synced = shell.sync(joined.member_id, 1, {joined.member_id: b"all of it"})
    assert synced.assignment == b"all of it"
    assert state(shell) == "Stable"
    shell.check_replay()


def test_a_new_client_is_told_its_id_before_it_becomes_a_member() -> None:
    shell = Shell()
    told = shell.join(confirms_id=True)
    assert told.code == ErrorCode.MEMBER_ID_REQUIRED
    assert shell.groups.describe("g").classic_members == ()
    joined = shell.join(member=told.member_id, confirms_id=True)
    assert (joined.code, joined.member_id) == (ErrorCode.NONE, told.member_id)


def test_an_id_that_nobody_joins_with_is_forgotten_with_its_group() -> None:
    shell = Shell()
    told = shell.join(confirms_id=True)
    shell.advance(10 * SECOND)
    assert shell.groups.list_groups(calls.ListGroups()) == ()
    assert shell.join(member=told.member_id).code == ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.log == []


def test_a_second_member_makes_the_first_join_again_and_both_share() -> None:
    shell = Shell()
    members, generation = shell.stable_group(1)
    ticket = shell.send_join()
    assert shell.is_parked(ticket)
    assert shell.heartbeat(members[0], generation) == ErrorCode.REBALANCE_IN_PROGRESS
    again = shell.join(member=members[0])
    newcomer = shell.reply(ticket, JoinReply)
    assert again.generation == newcomer.generation == generation + 1
    assert again.leader == newcomer.leader == members[0]
    assert len(again.members) == 2
    assert newcomer.members == ()
    waiting = shell.send_sync(newcomer.member_id, 2)
    assert shell.is_parked(waiting)
    shell.sync(members[0], 2, {members[0]: b"a", newcomer.member_id: b"b"})
    assert shell.reply(waiting, SyncReply).assignment == b"b"
    shell.check_replay()


def test_the_assignment_is_answered_only_after_its_row_is_committed() -> None:
    shell = Shell()
    joined = shell.join()
    decision = shell.decision(99)
    shell.groups.sync(calls.Sync("g", SyncRequest(joined.member_id, 1)), decision)
    assert [reply.after_commit for reply in decision.replies] == [True]
    assert len(decision.rows) == 1


def test_an_empty_group_waits_for_more_members_and_longer_while_they_arrive() -> None:
    shell = Shell(GroupSettings(initial_delay_ms=3 * SECOND))
    first = shell.send_join()
    shell.advance(2 * SECOND)
    second = shell.send_join()
    shell.advance(2 * SECOND)
    assert shell.is_parked(first)
    shell.advance(2 * SECOND)
    assert shell.reply(first, JoinReply).generation == 1
    assert shell.reply(second, JoinReply).generation == 1


def test_who_does_not_join_again_in_time_is_out() -> None:
    shell = Shell()
    members, generation = shell.stable_group(3)
    newcomer = shell.send_join()
    again = shell.send_join(member=members[0])
    for _ in range(7):  # the other two only send heartbeats
        shell.advance(4 * SECOND)
        for member in members[1:]:
            assert shell.heartbeat(member, generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert shell.is_parked(again)
    shell.advance(2 * SECOND)
    assert {m[0] for m in shell.reply(again, JoinReply).members} == {
        members[0],
        shell.reply(newcomer, JoinReply).member_id,
    }
    assert shell.heartbeat(members[1], generation) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_crashed_member_is_noticed_by_its_session() -> None:
    shell = Shell()
    members, generation = shell.stable_group(2)
    shell.advance(6 * SECOND)
    shell.heartbeat(members[0], generation)
    shell.advance(5 * SECOND)
    assert shell.heartbeat(members[0], generation) == ErrorCode.REBALANCE_IN_PROGRESS
    alone = shell.join(member=members[0])
    assert [m[0] for m in alone.members] == [members[0]]


def test_a_slow_leader_loses_its_place_and_another_one_leads() -> None:
    shell = Shell()
    leader, follower = shell.stable_group(2)[0]
    ticket = shell.send_join(member=leader)
    shell.join(member=follower)
    generation = shell.reply(ticket, JoinReply).generation
    waiting = shell.send_sync(follower, generation)
    for _ in range(6):
        shell.advance(5 * SECOND)
        if shell.is_parked(waiting):
            shell.heartbeat(leader, generation)
    # The leader beats but never assigns: its time to sync is over.
    assert shell.reply(waiting, SyncReply).code == ErrorCode.REBALANCE_IN_PROGRESS
    assert shell.heartbeat(leader, generation) == ErrorCode.UNKNOWN_MEMBER_ID
    joined = shell.join(member=follower)
    assert (joined.leader, joined.generation) == (follower, generation + 1)
    shell.check_replay()


def test_a_dead_leader_is_replaced_after_its_session() -> None:
    shell = Shell()
    leader, follower = shell.stable_group(2)[0]
    shell.send_join(member=leader)
    generation = shell.join(member=follower).generation
    waiting = shell.send_sync(follower, generation)
    shell.advance(10 * SECOND)
    assert shell.reply(waiting, SyncReply).code == ErrorCode.REBALANCE_IN_PROGRESS
    assert shell.join(member=follower).leader == follower


def test_a_rolling_restart_of_static_members_disturbs_nobody() -> None:
    shell = Shell()
    members, generation = shell.stable_group(3, instances=True)
    for index, old in enumerate(members):
        shell.advance(3 * SECOND)
        joined = shell.join(instance=f"i{index}")
        assert joined.code == ErrorCode.NONE
        assert joined.generation == generation
        assert joined.member_id != old
        synced = shell.sync(joined.member_id, generation, instance=f"i{index}")
        assert synced.assignment == f"share of {old}".encode()
        assert (
            shell.heartbeat(old, generation, instance=f"i{index}") == ErrorCode.FENCED_INSTANCE_ID
        )
        members[index] = joined.member_id
        for other, member in enumerate(members):
            assert shell.heartbeat(member, generation, instance=f"i{other}") == ErrorCode.NONE
    shell.check_replay()


def test_a_leader_that_comes_back_is_told_not_to_assign() -> None:
    shell = Shell()
    members, _ = shell.stable_group(2, instances=True)
    joined = shell.join(instance="i0")
    assert joined.skip_assignment
    assert joined.leader == joined.member_id
    assert len(joined.members) == 2
    old_client = shell.join(instance="i0", can_skip=False)
    assert not old_client.skip_assignment
    assert old_client.leader == joined.member_id != old_client.member_id
    assert members


def test_a_static_member_with_a_new_subscription_does_cause_a_rebalance() -> None:
    shell = Shell()
    members, generation = shell.stable_group(2, instances=True)
    ticket = shell.send_join(instance="i1", protocols=(("range", b"other topics"),))
    assert shell.is_parked(ticket)
    assert shell.heartbeat(members[0], generation, instance="i0") == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_that_stays_away_is_out_after_its_session() -> None:
    shell = Shell()
    members, generation = shell.stable_group(2, instances=True)
    shell.advance(6 * SECOND)
    shell.heartbeat(members[0], generation, instance="i0")
    shell.advance(6 * SECOND)
    code = shell.heartbeat(members[0], generation, instance="i0")
    assert code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_keeps_its_place_through_a_rebalance_it_misses() -> None:
    shell = Shell()
    session_ms = 120 * SECOND
    first = shell.join(instance="i0", session_ms=session_ms)
    ticket = shell.send_join(instance="i1", session_ms=session_ms)
    shell.join(member=first.member_id, instance="i0", session_ms=session_ms)
    second = shell.reply(ticket, JoinReply)
    shell.sync(first.member_id, 2, {first.member_id: b"a", second.member_id: b"b"})
    shell.sync(second.member_id, 2)
    # Only the first joins again; the second is away, and its partitions stay its own.
    ticket = shell.send_join(member=first.member_id, instance="i0", session_ms=session_ms)
    shell.advance(30 * SECOND)
    assert len(shell.reply(ticket, JoinReply).members) == 2


def test_cooperative_consumers_rebalance_twice_and_keep_what_they_have() -> None:
    """Owned partitions travel in the metadata, so giving one up changes it: a second rebalance."""
    shell = Shell()
    cooperative = "cooperative-sticky"
    first = shell.join(protocols=((cooperative, b"owns 0 1"),))
    shell.sync(first.member_id, 1, {first.member_id: b"0 1"})
    ticket = shell.send_join(protocols=((cooperative, b"owns nothing"),))
    leader = shell.join(member=first.member_id, protocols=((cooperative, b"owns 0 1"),))
    second = shell.reply(ticket, JoinReply).member_id
    assert {m: data for m, _, data in leader.members}[second] == b"owns nothing"
    shell.sync(first.member_id, 2, {first.member_id: b"0", second: b""})
    assert shell.sync(second, 2).assignment == b""
    # The first has given up partition 1 and says so.
    ticket = shell.send_join(member=first.member_id, protocols=((cooperative, b"owns 0"),))
    assert shell.heartbeat(second, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    shell.join(member=second, protocols=((cooperative, b"owns nothing"),))
    assert shell.reply(ticket, JoinReply).generation == 3
    shell.sync(first.member_id, 3, {first.member_id: b"0", second: b"1"})
    assert shell.sync(second, 3).assignment == b"1"
    shell.check_replay()


def test_a_follower_whose_answer_was_lost_gets_it_again_without_a_rebalance() -> None:
    shell = Shell()
    members, generation = shell.stable_group(2)
    assert shell.join(member=members[1]).generation == generation
    assert shell.heartbeat(members[0], generation) == ErrorCode.NONE


def test_a_leader_that_joins_again_asks_for_a_new_assignment() -> None:
    shell = Shell()
    members, generation = shell.stable_group(2)
    assert shell.is_parked(shell.send_join(member=members[0]))
    assert shell.heartbeat(members[1], generation) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_repeated_request_ends_the_wait_of_the_first() -> None:
    shell = Shell()
    members, _ = shell.stable_group(2)
    first = shell.send_join(member=members[0])
    second = shell.send_join(member=members[0])
    assert shell.reply(first, JoinReply).code == ErrorCode.REBALANCE_IN_PROGRESS
    generation = shell.join(member=members[1]).generation
    assert shell.reply(second, JoinReply).code == ErrorCode.NONE
    sync = shell.send_sync(members[1], generation)
    shell.send_sync(members[1], generation)
    assert shell.reply(sync, SyncReply).code == ErrorCode.REBALANCE_IN_PROGRESS


def test_the_last_to_leave_empties_the_group_and_the_generation_rises() -> None:
    shell = Shell()
    members, generation = shell.stable_group(2)
    assert shell.leave((members[0], None), (members[1], None)) == [ErrorCode.NONE, ErrorCode.NONE]
    assert state(shell) == "Empty"
    assert shell.groups.describe("g").generation == generation + 1
    shell.check_replay()
    assert shell.join().generation == generation + 2


def test_a_member_that_leaves_while_it_waits_is_answered() -> None:
    shell = Shell()
    members, _ = shell.stable_group(2)
    waiting = shell.send_join(member=members[1], protocols=(("range", b"new"),))
    shell.leave((members[1], None))
    assert shell.reply(waiting, JoinReply).code == ErrorCode.UNKNOWN_MEMBER_ID


def test_after_a_restart_members_go_on_as_if_nothing_had_been() -> None:
    shell = Shell()
    members, generation = shell.stable_group(3)
    shell.restart()
    assert [shell.heartbeat(m, generation) for m in members] == [ErrorCode.NONE] * 3
    assert shell.sync(members[1], generation).assignment == f"share of {members[1]}".encode()
    shell.advance(10 * SECOND)  # and whoever is silent is out
    assert state(shell) in ("PreparingRebalance", "Empty")


def test_a_restart_in_the_middle_of_a_rebalance_finds_the_last_stable_generation() -> None:
    shell = Shell()
    members, generation = shell.stable_group(2)
    shell.send_join()
    shell.restart()
    assert shell.heartbeat(members[0], generation) == ErrorCode.NONE


def test_the_protocol_with_most_votes_among_those_all_support_wins() -> None:
    shell = Shell(GroupSettings(initial_delay_ms=SECOND))
    ticket = shell.send_join(protocols=(("mine", b""), ("range", b"r"), ("sticky", b"s")))
    for _ in range(2):
        shell.send_join(protocols=(("sticky", b"s"), ("range", b"r")))
    shell.advance(5 * SECOND)
    assert shell.reply(ticket, JoinReply).protocol == "sticky"


def test_the_table_of_transitions_is_closed() -> None:
    assert BEFORE.keys() == set(State)
    assert {source for sources in BEFORE.values() for source in sources} == set(State) - {
        State.DEAD
    }
