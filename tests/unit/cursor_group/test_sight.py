"""What patterns find, and of that what each member may see."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from penstock.cursor.group.sight import Finds, Sight

TOPICS = ("a1", "a2", "b1")


def sees(turn: int, *names: str) -> Sight:
    return Sight(turn, lambda name: name in names)


def test_what_a_member_may_not_see_its_pattern_does_not_find() -> None:
    finds = Finds(patterns_max=10)
    assert finds.look("m", "a.*", TOPICS, epoch=1, sight=sees(1, "a1", "b1"))
    assert finds.names("m", "a.*", TOPICS, epoch=1) == {"a1"}
    assert finds.names("other", "a.*", TOPICS, epoch=1) == {"a1", "a2"}


def test_nobody_is_asked_again_while_nothing_changes() -> None:
    finds, asked = Finds(patterns_max=10), []

    def may_see(name: str) -> bool:
        asked.append(name)
        return True

    for _ in range(3):
        assert not finds.look("m", "a.*", TOPICS, epoch=1, sight=Sight(1, may_see))
    assert sorted(asked) == ["a1", "a2"]
    assert not finds.look("m", "a.*", TOPICS, epoch=1, sight=Sight(2, may_see)), "the same again"
    assert finds.look("m", "b.*", TOPICS, epoch=1, sight=Sight(2, may_see))
    assert len(asked) == 5


def test_one_that_has_not_asked_since_the_group_was_loaded_finds_everything_until_then() -> None:
    finds = Finds(patterns_max=10)
    assert finds.names("m", "a.*", TOPICS, epoch=1) == {"a1", "a2"}
    assert not finds.look("m", "a.*", TOPICS, epoch=1, sight=sees(1, *TOPICS)), "which is right"
    finds.forget("m")
    assert finds.look("m", "a.*", TOPICS, epoch=1, sight=sees(1, "a1")), "which was too much"


def test_who_sees_everything_again_is_told_so() -> None:
    finds = Finds(patterns_max=10)
    finds.look("m", "a.*", TOPICS, epoch=1, sight=sees(1, "a1"))
    assert finds.look("m", "a.*", TOPICS, epoch=1, sight=None)
    assert not finds.look("m", "a.*", TOPICS, epoch=1, sight=None)
    assert finds.names("m", "a.*", TOPICS, epoch=1) == {"a1", "a2"}


def _all_of(names: frozenset[str]) -> Callable[[str], bool]:
    return lambda name: name in names


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from("mn"),
            st.sampled_from(("a.*", "b.*", ".*1", "c")),
            st.frozensets(st.sampled_from(TOPICS)),  # the topics
            st.none() | st.frozensets(st.sampled_from(TOPICS)),  # what may be seen
        ),
        max_size=30,
    )
)
def test_it_finds_what_a_fresh_look_would_find(
    steps: list[tuple[str, str, frozenset[str], frozenset[str] | None]],
) -> None:
    finds = Finds(patterns_max=2)
    for turn, (member, regex, topics, seen) in enumerate(steps):
        sight = None if seen is None else Sight(turn, _all_of(seen))
        before = finds.names(member, regex, topics, epoch=turn)
        has_changed = finds.look(member, regex, topics, epoch=turn, sight=sight)
        after = finds.names(member, regex, topics, epoch=turn)
        fresh = Finds(patterns_max=2).names(member, regex, topics, epoch=turn)
        assert after == (fresh if seen is None else fresh & seen)
        assert has_changed or after == before
