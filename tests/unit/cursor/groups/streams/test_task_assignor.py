"""The assignor of streams groups: complete, even, sticky, and standby tasks in other processes."""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given, settings

from penstock.cursor.groups.streams.task_assignor import StreamsMemberSpec, assign_sticky

STATEFUL = frozenset("ab")


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[StreamsMemberSpec], dict[str, int], int]:
    counts = draw(st.dictionaries(st.sampled_from("abc"), st.integers(1, 7), min_size=1))
    names = draw(st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True))
    members = [StreamsMemberSpec(f"m{n}", f"p{draw(st.integers(0, 3))}") for n in names]
    return members, counts, draw(st.integers(0, 2))


def assigned(
    members: list[StreamsMemberSpec], counts: dict[str, int], standbys: int
) -> dict[str, StreamsMemberSpec]:
    shares = assign_sticky(members, counts, stateful=STATEFUL, standbys=standbys)
    assert shares == assign_sticky(members[::-1], counts, stateful=STATEFUL, standbys=standbys)
    check(members, counts, standbys, shares)
    return shares


def check(
    members: list[StreamsMemberSpec],
    counts: dict[str, int],
    standbys: int,
    shares: dict[str, StreamsMemberSpec],
) -> None:
    every = {(name, number) for name, count in counts.items() for number in range(count)}
    assert shares.keys() == {member.member_id for member in members}
    owners = Counter(task for share in shares.values() for task in share.active)
    assert owners == Counter(every), "every task has one owner"
    sizes = [len(share.active) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    process_of = {member.member_id: member.process_id for member in members}
    copies = min(standbys, len(set(process_of.values())) - 1)
    held: dict[tuple[str, int], list[str]] = {task: [] for task in every}
    for member_id, share in shares.items():
        for task in share.active | share.standby:
            held[task].append(process_of[member_id])
    for task, processes in held.items():
        assert len(set(processes)) == len(processes), "a task is once in a process"
        assert len(processes) == 1 + (copies if task[0] in STATEFUL else 0)


def after(
    members: list[StreamsMemberSpec], shares: dict[str, StreamsMemberSpec]
) -> list[StreamsMemberSpec]:
    return [shares[member.member_id] for member in members]


@settings(max_examples=200)
@given(groups())
def test_an_assignment_is_complete_even_and_stays(
    case: tuple[list[StreamsMemberSpec], dict[str, int], int],
) -> None:
    members, counts, standbys = case
    shares = assigned(members, counts, standbys)
    again = assigned(after(members, shares), counts, standbys)
    assert {name: share.active for name, share in again.items()} == {
        name: share.active for name, share in shares.items()
    }


@settings(max_examples=200)
@given(groups(), st.data())
def test_a_member_that_leaves_moves_only_its_tasks(
    case: tuple[list[StreamsMemberSpec], dict[str, int], int], data: st.DataObject
) -> None:
    members, counts, standbys = case
    shares = assigned(members, counts, standbys)
    left = data.draw(st.sampled_from(members))
    others = [member for member in after(members, shares) if member.member_id != left.member_id]
    if others:
        now = assigned(others, counts, standbys)
        for member in others:
            assert member.active <= now[member.member_id].active


@settings(max_examples=200)
@given(groups())
def test_a_member_that_comes_takes_no_more_than_its_share(
    case: tuple[list[StreamsMemberSpec], dict[str, int], int],
) -> None:
    members, counts, standbys = case
    before = after(members, assigned(members, counts, standbys))
    came = StreamsMemberSpec("new", "p-new")
    now = assigned([*before, came], counts, standbys)
    moved = sum(len(member.active - now[member.member_id].active) for member in before)
    assert moved == len(now["new"].active)


def test_a_standby_takes_over_from_a_process_that_is_gone() -> None:
    """The copies are where an assignor that does not look for them would not put the tasks."""
    others = [
        StreamsMemberSpec(
            f"m{number}",
            f"p{number}",
            active=frozenset(("a", 3 * number + index) for index in range(3)),
            standby=frozenset((("a", 3 - number),)),
        )
        for number in (1, 2, 3)
    ]
    now = assigned(others, {"a": 12}, 1)
    for member in others:
        assert now[member.member_id].active - member.active == member.standby


def test_a_task_stays_in_a_process_when_a_thread_of_it_is_replaced() -> None:
    members = [StreamsMemberSpec("m0", "p0"), StreamsMemberSpec("m1", "p1")]
    before = after(members, assigned(members, {"a": 4}, 0))
    replaced = StreamsMemberSpec("m9", "p0")
    # The old thread is still known: the task is taken from nobody else.
    now = assigned([before[1], replaced], {"a": 4}, 0)
    assert now["m1"].active == before[1].active
    assert now["m9"].active == before[0].active


def test_nobody_and_nothing() -> None:
    assert assign_sticky([], {"a": 3}) == {}
    idle = StreamsMemberSpec("m", "p")
    assert assign_sticky([idle], {}) == {"m": idle}


def test_idle_members_get_the_tasks_of_processes_with_more_threads_last() -> None:
    """Two processes, one with three threads: the fourth task goes where there is room."""
    members = [StreamsMemberSpec(f"m{n}", "p0" if n < 3 else "p1") for n in range(4)]
    now = assigned(members, {"a": 2}, 0)
    by_process = Counter(
        "p0" if member_id != "m3" else "p1"
        for member_id, share in now.items()
        for _ in share.active
    )
    assert by_process == {"p0": 1, "p1": 1}
