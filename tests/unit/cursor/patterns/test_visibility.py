"""What patterns find, and of that what each member may see."""

from collections.abc import Callable, Iterable

from hypothesis import given
from hypothesis import strategies as st

from penstock.cursor.patterns.matches import Topics, TopicVisibility, VisibleMatches

NAMES = ("a1", "a2", "b1")


def topics_of(names: Iterable[str] = NAMES, epoch: int = 1) -> Topics:
    return Topics(epoch, {name: (f"id-{name}", 1) for name in names})


TOPICS = topics_of()


def sees(version: int, *names: str) -> TopicVisibility:
    return TopicVisibility(version, lambda name: name in names)


def test_what_a_member_may_not_see_its_pattern_does_not_find() -> None:
    found = VisibleMatches()
    assert found.update("m", "a.*", TOPICS, sees(1, "a1", "b1"))
    assert found.names("m", "a.*", TOPICS) == {"a1"}
    assert found.names("other", "a.*", TOPICS) == {"a1", "a2"}


def test_rights_are_not_checked_again_while_nothing_changes() -> None:
    found, checked = VisibleMatches(), []

    def may_see(name: str) -> bool:
        checked.append(name)
        return True

    for _ in range(3):
        assert not found.update("m", "a.*", TOPICS, TopicVisibility(1, may_see))
    assert sorted(checked) == ["a1", "a2"]
    assert not found.update("m", "a.*", TOPICS, TopicVisibility(2, may_see)), "the same again"
    assert found.update("m", "b.*", TOPICS, TopicVisibility(2, may_see))
    assert len(checked) == 5


def test_a_member_without_a_request_since_the_group_was_loaded_finds_everything() -> None:
    found = VisibleMatches()
    assert found.names("m", "a.*", TOPICS) == {"a1", "a2"}
    assert not found.update("m", "a.*", TOPICS, sees(1, *NAMES)), "which is right"
    found.forget("m")
    assert found.update("m", "a.*", TOPICS, sees(1, "a1")), "which was too much"


def test_a_member_that_sees_everything_again_has_changed() -> None:
    found = VisibleMatches()
    found.update("m", "a.*", TOPICS, sees(1, "a1"))
    assert found.update("m", "a.*", TOPICS, None)
    assert not found.update("m", "a.*", TOPICS, None)
    assert found.names("m", "a.*", TOPICS) == {"a1", "a2"}


def _all_of(names: frozenset[str]) -> Callable[[str], bool]:
    return lambda name: name in names


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from("mn"),
            st.sampled_from(("a.*", "b.*", ".*1", "c")),
            st.frozensets(st.sampled_from(NAMES)),  # the topics
            st.none() | st.frozensets(st.sampled_from(NAMES)),  # what may be seen
        ),
        max_size=30,
    )
)
def test_topics_found_are_those_that_a_new_search_finds(
    steps: list[tuple[str, str, frozenset[str], frozenset[str] | None]],
) -> None:
    found = VisibleMatches()
    for version, (member, regex, names, seen) in enumerate(steps):
        topics = topics_of(names, version)
        visibility = None if seen is None else TopicVisibility(version, _all_of(seen))
        before = found.names(member, regex, topics)
        has_changed = found.update(member, regex, topics, visibility)
        after = found.names(member, regex, topics)
        fresh = VisibleMatches().names(member, regex, topics)
        assert after == (fresh if seen is None else fresh & seen)
        assert has_changed or after == before
