"""Patterns are matched once per name, in steps, whatever becomes of the topics meanwhile."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.cursor.group.matches import Matches
from penstock.cursor.group.pattern import STATES_MAX, Pattern

TOPICS = ("a1", "a2", "b1", "b2", "c1")
PATTERNS = ("a.*", "b.*", ".*1", ".*")


def steps_of(matches: Matches, regex: str, topics: list[str], epoch: int) -> int:
    return sum(1 for _ in matches.catch_up(regex, topics, epoch))


def test_a_name_is_matched_once_and_a_new_one_when_it_comes() -> None:
    matches, topics = Matches(), [f"t{number}" for number in range(400)]
    assert steps_of(matches, "t.*9", topics, 1) == 100
    assert steps_of(matches, "t.*9", topics, 1) == 0
    topics.append("t-9")
    assert steps_of(matches, "t.*9", topics, 2) <= 1
    assert "t-9" in matches.of("t.*9", topics, 2)
    topics.remove("t-9")
    assert "t-9" not in matches.of("t.*9", topics, 3)


def test_a_match_that_takes_long_stops_many_times() -> None:
    pattern = Pattern("(.*a){50}b")
    assert sum(1 for _ in pattern.steps("a" * 200)) > 10
    assert not pattern.matches("a" * 200)
    assert pattern.matches("a" * 200 + "b")


def test_work_that_the_topics_overtake_is_begun_again() -> None:
    matches = Matches()
    before = [f"a{number}" for number in range(8)]
    work = matches.catch_up("a.*", before, 1)
    next(work)
    after = [*before[4:], "a-new", "b"]
    assert matches.of("a.*", after, 2) == {*before[4:], "a-new"}
    assert list(work) == []
    assert matches.of("a.*", after, 2) == {*before[4:], "a-new"}


def test_wide_ranges_cost_no_more_than_narrow_ones() -> None:
    wide = Pattern("[\u0100-\u1000b-dx-]{250}")
    assert wide.matches("\u0500c" * 125)
    assert not wide.matches("\u0500e" * 125)
    assert Pattern("[^\\d\\Wa-c]+").matches("xyz_")
    assert not Pattern("[^\\d\\Wa-c]+").matches("xyb")
    assert STATES_MAX >= 2_000, "x{1000} needs so many"


@given(
    st.lists(
        st.tuples(st.sampled_from(PATTERNS), st.frozensets(st.sampled_from(TOPICS))), max_size=30
    )
)
def test_it_finds_what_matching_anew_would_find(
    steps: list[tuple[str, frozenset[str]]],
) -> None:
    matches = Matches(patterns_max=2)
    for epoch, (regex, topics) in enumerate(steps):
        expected = {name for name in topics if Pattern(regex).matches(name)}
        assert matches.of(regex, topics, epoch) == expected
