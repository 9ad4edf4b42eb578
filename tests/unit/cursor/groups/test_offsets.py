"""Committed offsets: plain, inside transactions, deleted, and out of retention."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.cursor.groups.harness import SECOND, Shell, parts, topics_of, view_of

from penstock.cursor import coordinator_calls as calls
from penstock.cursor.groups.offsets import CommitReply, CommitRequest, PartitionCommit
from penstock.cursor.groups.settings import GroupSettings
from penstock.wire.kafka.faults import ErrorCode

DAY = 24 * 3_600 * SECOND


def subscription(*names: str) -> bytes:
    data = b"\x00\x01" + len(names).to_bytes(4, "big")
    return (
        data
        + b"".join(len(n.encode()).to_bytes(2, "big") + n.encode() for n in names)
        + b"\xff" * 4
    )


def expire(shell: Shell) -> None:
    shell.decide(shell.groups.expire, topic_ids=lambda _, name: name)


def test_an_unknown_group_has_committed_nothing_and_that_is_no_error() -> None:
    reply = Shell().groups.fetch(calls.FetchOffsets("nobody", [("t", 0)]))
    assert reply.code == ErrorCode.NONE
    assert (reply.partitions[0].offset, reply.partitions[0].code) == (-1, ErrorCode.NONE)
    assert Shell().groups.fetch(calls.FetchOffsets("nobody", None)).partitions == ()


def test_a_consumer_that_assigns_by_itself_commits_without_a_member() -> None:
    shell = Shell()
    assert shell.commit({("t", 0): 5, ("t", 1): 6}, metadata="mine") == ErrorCode.NONE
    fetched = shell.groups.fetch(calls.FetchOffsets("g", None)).partitions
    assert [(p.partition, p.offset, p.metadata) for p in fetched] == [
        (0, 5, "mine"),
        (1, 6, "mine"),
    ]
    assert shell.groups.list_groups(calls.ListGroups())[0].state == "Empty"
    shell.check_replay()


def test_a_commit_is_answered_after_it_is_committed() -> None:
    shell = Shell()
    request = CommitRequest((PartitionCommit("t", 0, 1),))
    decision = shell.decision(1)
    shell.groups.commit(calls.Commit("g", request), decision)
    assert decision.replies[0].after_commit
    assert len(decision.rows) == 1


def test_a_commit_keeps_its_member_alive() -> None:
    shell = Shell()
    members, generation = shell.stable_group(1)
    for _ in range(4):
        shell.advance(8 * SECOND)
        code = shell.commit({("t", 0): 1}, member=members[0], generation=generation)
        assert code == ErrorCode.NONE


def test_a_group_keeps_only_so_many_offsets() -> None:
    shell = Shell(GroupSettings(offsets_max=2))
    offsets = {("t", p): 1 for p in range(3)}
    assert shell.commit(offsets) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert shell.offset(partition=1) == 1
    assert shell.offset(partition=2) == -1
    assert shell.commit({("t", 0): 9}) == ErrorCode.NONE


def test_a_partition_with_a_committed_and_a_pending_offset_counts_once() -> None:
    shell = Shell(GroupSettings(offsets_max=2))
    assert shell.commit({("t", 0): 1}) == ErrorCode.NONE
    assert shell.commit({("t", 0): 2}, producer=(7, 0)) == ErrorCode.NONE
    assert shell.commit({("t", 1): 2}, producer=(7, 0)) == ErrorCode.NONE, "the second partition"
    assert shell.commit({("t", 1): 3}, producer=(7, 0)) == ErrorCode.NONE, (
        "the same partition again"
    )
    assert shell.commit({("t", 2): 3}) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    shell.end_transaction((7, 0), is_commit=False)
    assert shell.commit({("t", 2): 3}) == ErrorCode.NONE, (
        "the pending offset of partition 1 is gone"
    )
    shell.check_replay()


# ── Transactions ─────────────────────────────────────────────────────────────────────────────
def test_a_transactional_commit_shows_when_its_transaction_commits() -> None:
    shell = Shell()
    shell.commit({("t", 0): 1})
    shell.commit({("t", 0): 2}, producer=(7, 0))
    assert shell.offset() == 1
    stable = shell.groups.fetch(
        calls.FetchOffsets("g", [("t", 0)], requires_stable=True)
    ).partitions[0]
    assert (stable.offset, stable.code) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    shell.restart()
    assert shell.end_transaction((7, 1), is_commit=True) == ErrorCode.NONE
    assert shell.offset() == 2
    assert (
        shell.groups.fetch(calls.FetchOffsets("g", None, requires_stable=True)).partitions[0].offset
        == 2
    )
    shell.check_replay()


def test_an_aborted_commit_never_shows() -> None:
    shell = Shell()
    shell.commit({("t", 0): 2}, producer=(7, 0))
    shell.end_transaction((7, 1), is_commit=False)
    assert shell.offset() == -1
    assert shell.groups.list_groups(calls.ListGroups()) == ()
    shell.check_replay()


def test_a_marker_may_come_twice() -> None:
    shell = Shell()
    shell.commit({("t", 0): 2}, producer=(7, 0))
    shell.end_transaction((7, 1), is_commit=True)
    shell.commit({("t", 0): 3})
    assert shell.end_transaction((7, 1), is_commit=True) == ErrorCode.NONE
    assert shell.offset() == 3


def test_a_plain_commit_made_later_stands_above_the_transaction() -> None:
    shell = Shell()
    shell.commit({("t", 0): 2}, producer=(7, 0))
    shell.commit({("t", 0): 9})
    shell.end_transaction((7, 1), is_commit=True)
    assert shell.offset() == 9
    shell.check_replay()


def test_a_commit_that_comes_after_its_marker_is_refused() -> None:
    shell = Shell()
    shell.end_transaction((7, 1), is_commit=True)
    assert shell.commit({("t", 0): 2}, producer=(7, 0)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert shell.commit({("t", 0): 2}, producer=(7, 1)) == ErrorCode.NONE
    assert shell.commit({("t", 0): 1}, producer=(7, 0)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert shell.end_transaction((7, 0), is_commit=True) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_what_is_known_of_producers_is_forgotten_in_the_end() -> None:
    shell = Shell()
    shell.end_transaction((7, 1), is_commit=True)
    shell.advance(2 * DAY)
    expire(shell)
    assert view_of(shell.groups) == {"fences": {}}
    shell.check_replay()


# ── Delete and retention ─────────────────────────────────────────────────────────────────────
def delete(shell: Shell, *names: str) -> CommitReply:
    ticket = shell.decide(
        shell.groups.delete_offsets, calls.DeleteOffsets("g", [(n, n, 0) for n in names])
    )
    return shell.reply(ticket, CommitReply)


def test_offsets_in_use_are_not_deleted() -> None:
    shell = Shell()
    joined = shell.join(protocols=(("range", subscription("used")),))
    shell.sync(joined.member_id, 1)
    shell.commit({("used", 0): 1, ("left", 0): 2}, member=joined.member_id, generation=1)
    reply = delete(shell, "used", "left")
    assert [code for _, _, code in reply.partitions] == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
    ]
    assert (shell.offset("used"), shell.offset("left")) == (1, -1)
    shell.check_replay()


def test_deleting_offsets_needs_a_group_that_can_be_judged() -> None:
    shell = Shell()
    assert delete(shell, "t").code == ErrorCode.GROUP_ID_NOT_FOUND
    shell.stable_group(1)  # its metadata is no plain consumer's
    assert delete(shell, "t").code == ErrorCode.NON_EMPTY_GROUP


def test_offsets_in_use_of_a_consumer_group_are_not_deleted() -> None:
    shell = Shell()
    shell.beat(topics_of(t=1), "a", 0, names=("t",), owned=parts("t"))
    shell.commit({("t", 0): 3}, member="a", generation=1)
    assert delete(shell, "t").partitions[0][2] == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    shell.beat(topics_of(t=1), "a", -1)
    assert delete(shell, "t").partitions[0][2] == ErrorCode.NONE


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    shell = Shell()
    shell.commit({("t", 0): 1, ("u", 0): 1})
    shell.commit({("t", 1): 1}, producer=(7, 0))
    shell.decide(shell.groups.forget_topics, frozenset({"t"}))
    assert [p.topic_id for p in shell.groups.fetch(calls.FetchOffsets("g", None)).partitions] == [
        "u"
    ]
    shell.check_replay()


def test_offsets_of_an_empty_group_expire_a_week_after_the_last_member_left() -> None:
    shell = Shell()
    members, generation = shell.stable_group(1)
    shell.commit({("t", 0): 1}, member=members[0], generation=generation)
    shell.advance(5 * SECOND)
    shell.leave((members[0], None))
    shell.advance(7 * DAY - SECOND)
    expire(shell)
    assert shell.offset() == 1
    shell.advance(2 * SECOND)
    expire(shell)
    assert shell.groups.list_groups(calls.ListGroups()) == ()
    shell.check_replay()


def test_offsets_without_members_expire_by_their_own_age() -> None:
    shell = Shell()
    shell.commit({("t", 0): 1})
    shell.advance(4 * DAY)
    shell.commit({("t", 1): 1})
    shell.advance(4 * DAY)
    expire(shell)
    assert [p.partition for p in shell.groups.fetch(calls.FetchOffsets("g", None)).partitions] == [
        1
    ]
    shell.check_replay()


def test_a_topic_that_no_member_reads_any_more_expires_too() -> None:
    shell = Shell()
    topics = topics_of(t=1)
    shell.beat(topics, "a", 0, names=("t",), owned=parts("t"))
    shell.commit({("t", 0): 3, ("old", 0): 4}, member="a", generation=1)
    shell.wall_skew_ms = 9 * DAY  # the member has been there all the time
    expire(shell)
    assert (shell.offset("t"), shell.offset("old")) == (3, -1)
    shell.check_replay()


class OffsetMachine(RuleBasedStateMachine):
    """Against a model that keeps a list of what was said, in order."""

    @initialize()
    def start(self) -> None:
        self.shell = Shell()
        self.shown: dict[tuple[str, int], int] = {}
        self.open: dict[int, dict[tuple[str, int], int]] = {}
        self.epochs = {7: 0, 8: 0}
        self.count = 0

    @rule(partition=st.integers(0, 2))
    def commit(self, partition: int) -> None:
        self.count += 1
        assert self.shell.commit({("t", partition): self.count}) == ErrorCode.NONE
        self.shown["t", partition] = self.count
        for commits in self.open.values():
            commits.pop(("t", partition), None)

    @rule(partition=st.integers(0, 2), producer=st.sampled_from([7, 8]))
    def commit_in_transaction(self, partition: int, producer: int) -> None:
        self.count += 1
        code = self.shell.commit(
            {("t", partition): self.count}, producer=(producer, self.epochs[producer])
        )
        assert code == ErrorCode.NONE
        self.open.setdefault(producer, {})["t", partition] = self.count

    @rule(producer=st.sampled_from([7, 8]), is_commit=st.booleans(), repeats=st.integers(1, 2))
    def end(self, producer: int, is_commit: bool, repeats: int) -> None:
        self.epochs[producer] += 1
        for _ in range(repeats):
            self.shell.end_transaction((producer, self.epochs[producer]), is_commit=is_commit)
        commits = self.open.pop(producer, {})
        if is_commit:
            self.shown.update(commits)

    @rule()
    def restart(self) -> None:
        self.shell.restart()

    @invariant()
    def agrees_with_the_model(self) -> None:
        found = self.shell.groups.fetch(
            calls.FetchOffsets("g", [("t", p) for p in range(3)])
        ).partitions
        assert {("t", f.partition): f.offset for f in found if f.offset >= 0} == self.shown
        stable = self.shell.groups.fetch(
            calls.FetchOffsets("g", [("t", p) for p in range(3)], requires_stable=True)
        )
        waiting = {p for commits in self.open.values() for p in commits}
        assert {("t", f.partition) for f in stable.partitions if f.code} == waiting
        self.shell.check_replay()


TestOffsetMachine = OffsetMachine.TestCase
TestOffsetMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
