"""Groups as a whole: listed, described, deleted; rows that are not ours; timers."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.unit.cursor.groups.harness import DEV, Shell, parts, topics_of, view_of
from tests.unit.cursor.groups.test_offsets import subscription

from penstock.cursor import coordinator_calls as calls
from penstock.cursor.coordinated_groups import Groups
from penstock.cursor.deadlines import Deadlines
from penstock.cursor.groups.classic.classic import subscribed_topics
from penstock.cursor.groups.decision import Reply
from penstock.cursor.groups.records import CODEC, OffsetValue, RowKind
from penstock.wire.kafka.faults import ErrorCode


def delete(shell: Shell, group: str = "g") -> ErrorCode:
    ticket = shell.decide(shell.groups.delete_group, calls.DeleteGroup(group))
    return shell.reply(ticket, Reply).code


def test_only_an_empty_group_is_deleted_and_then_nothing_of_it_remains() -> None:
    shell = Shell()
    assert delete(shell) == ErrorCode.GROUP_ID_NOT_FOUND
    members, generation = shell.stable_group(1)
    shell.commit({("t", 0): 1}, member=members[0], generation=generation)
    assert delete(shell) == ErrorCode.NON_EMPTY_GROUP
    shell.leave((members[0], None))
    assert delete(shell) == ErrorCode.NONE
    assert shell.groups.describe("g").code == ErrorCode.GROUP_ID_NOT_FOUND
    assert shell.offset() == -1
    shell.check_replay()


def test_an_empty_consumer_group_is_deleted_too() -> None:
    shell = Shell()
    shell.beat(topics_of(t=1), "a", 0, names=("t",), owned=parts("t"))
    assert delete(shell) == ErrorCode.NON_EMPTY_GROUP
    shell.beat(topics_of(t=1), "a", -1)
    assert delete(shell) == ErrorCode.NONE
    assert view_of(shell.groups) == {"fences": {}}
    shell.check_replay()


def test_groups_are_listed_by_state_and_kind() -> None:
    shell = Shell()
    shell.stable_group(1)
    shell.commit({("t", 0): 1}, group="simple")
    shell.beat(topics_of(t=1), "a", 0, names=("t",), owned=parts("t"), group="new")

    def names(**filters: tuple[str, ...]) -> set[str]:
        return {
            listing.group_id for listing in shell.groups.list_groups(calls.ListGroups(**filters))
        }

    assert names() == {"g", "simple", "new"}
    assert names(states=("stable",)) == {"g", "new"}
    assert names(states=("Empty",)) == {"simple"}
    assert names(kinds=("Consumer",)) == {"new"}
    assert names(kinds=("classic",), states=("STABLE",)) == {"g"}
    assert names(states=("NoSuchState",)) == set()


def test_a_stable_classic_group_is_described_with_its_assignments() -> None:
    shell = Shell()
    members, _ = shell.stable_group(2)
    described = shell.groups.describe("g")
    assert (described.state, described.protocol, described.kind) == ("Stable", "range", "classic")
    assert [(m.member_id, m.metadata, m.assignment) for m in described.classic_members] == [
        (m, b"m", f"share of {m}".encode()) for m in members
    ]
    shell.send_join()
    described = shell.groups.describe("g")
    assert described.state == "PreparingRebalance"
    assert {m.assignment for m in described.classic_members} == {b""}


def test_a_consumer_group_is_described_with_targets() -> None:
    shell = Shell()
    shell.beat(topics_of(t=2), "a", 0, names=("t",), owned=parts("t"))
    described = shell.groups.describe("g")
    assert (described.kind, described.epoch, described.target_epoch) == ("consumer", 1, 1)
    member = described.consumer_members[0]
    assert member.assigned == member.target == parts("t", 0, 1)
    assert member.metadata.client_id == "client"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", None),
        (b"\xfe\x90", b"\x00\x90"),
        (b"\x01\x90", None),
        (CODEC.encode(RowKind.OFFSET, ("g", "t", 0), None).key, b"\x09\x90"),
        (CODEC.encode(RowKind.OFFSET, ("g", "t", 0), None).key, b"\x00\x91\xc0"),
        (CODEC.encode(RowKind.OFFSET, ("g", "t", 0), None).key, b""),
    ],
)
def test_a_row_that_is_not_ours_is_an_error(key: bytes, value: bytes | None) -> None:
    with pytest.raises(ValueError, match="row"):
        Groups(DEV).replay(key, value, now_ms=0)


def test_a_row_of_a_later_program_with_more_fields_is_read() -> None:
    row = CODEC.encode(RowKind.OFFSET, ("g", "t", 0), OffsetValue(5, -1, "", 0))
    assert row.value is not None
    longer = row.value[:1] + bytes((row.value[1] + 1,)) + row.value[2:] + b"\xc0"
    groups = Groups(DEV)
    groups.replay(row.key, longer, now_ms=0)
    assert groups.fetch(calls.FetchOffsets("g", [("t", 0)])).partitions[0].offset == 5


def test_tombstones_of_groups_nobody_knows_are_harmless() -> None:
    groups = Groups(DEV)
    groups.replay(CODEC.encode(RowKind.OFFSET, ("g", "t", 0), None).key, None, now_ms=0)
    assert groups.list_groups(calls.ListGroups()) == ()


@given(st.lists(st.text(max_size=5), max_size=4))
def test_the_topics_of_a_subscription_are_found(names: list[str]) -> None:
    assert subscribed_topics(subscription(*names)) == frozenset(names)


@given(st.binary(max_size=24))
@settings(max_examples=200)
def test_any_metadata_is_read_or_not_understood(data: bytes) -> None:
    found = subscribed_topics(data)
    assert found is None or all(isinstance(name, str) for name in found)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.integers(0, 50), st.sampled_from(["set", "drop", "pop"])
        )
    )
)
@settings(max_examples=150)
def test_deadlines_agree_with_a_dictionary(steps: list[tuple[str, int, str]]) -> None:
    deadlines: Deadlines[str] = Deadlines()
    model: dict[str, int] = {}
    for name, at_ms, step in steps:
        if step == "set":
            deadlines.set(name, at_ms)
            model[name] = at_ms
        elif step == "drop":
            deadlines.drop(name)
            model.pop(name, None)
        else:
            found = set()
            while (due := deadlines.pop_due(at_ms)) is not None:
                found.add(due)
            assert found == {n for n, at in model.items() if at <= at_ms}
            model = {n: at for n, at in model.items() if at > at_ms}
        next_ms = deadlines.next_ms()
        assert (next_ms is None) == (not model)
        assert next_ms is None or next_ms <= min(model.values())
        assert len(deadlines._at_ms) == len(model)


def test_deadlines_do_not_pile_up() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for at_ms in range(10_000, 0, -1):
        deadlines.set(at_ms % 3, at_ms)
    assert len(deadlines._heap) < 200
