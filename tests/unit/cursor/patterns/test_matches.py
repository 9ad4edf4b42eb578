"""Patterns are matched once per name, in steps, whatever becomes of the topics meanwhile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cursor.patterns.matches import Matches
from penstock.cursor.patterns.pattern import Pattern

TOPICS = ("a1", "a2", "b1", "b2", "c1")
PATTERNS = ("a.*", "b.*", ".*1", ".*")


def steps_of(matches: Matches, regex: str, topics: list[str], epoch: int) -> int:
    return sum(1 for _ in matches.catch_up(regex, topics, epoch))


def test_a_name_is_matched_once_and_a_new_one_when_it_comes() -> None:
    matches, topics = Matches(), [f"t{number}" for number in range(400)]
    assert steps_of(matches, "t.*9", topics, 1) == 1 + 100  # the first compiles the pattern
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


def test_every_new_pattern_is_compiled_in_a_step_of_its_own() -> None:
    matches = Matches()
    assert [steps_of(matches, f"t{number}", [], 1) for number in range(3)] == [1, 1, 1]
    assert steps_of(matches, "t0", [], 1) == 0


def test_compiled_patterns_are_bounded_and_their_results_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.cursor.patterns.matches.PATTERN_STATES_KEPT_MAX", 250)
    compiled: list[str] = []

    class Counted(Pattern):
        def __init__(self, text: str) -> None:
            compiled.append(text)
            super().__init__(text)

    monkeypatch.setattr("penstock.cursor.patterns.matches.Pattern", Counted)
    matches = Matches()
    regexes = [f"a{{0,50}}{number}" for number in range(5)]  # about 100 states each
    for regex in regexes:
        assert matches.of(regex, ["a1", "a2"], 1) == {f"a{regex[-1]}"} & {"a1", "a2"}
    assert compiled == regexes
    assert [matches.of(regex, ["a1", "a2"], 1) for regex in regexes[1:3]] == [{"a1"}, {"a2"}]
    assert compiled == regexes  # the results were kept
    assert matches.of(regexes[1], ["a1", "a2", "aa1"], 2) == {"a1", "aa1"}
    assert compiled == [*regexes, regexes[1]]  # compiled again for a new name


def test_wide_ranges_cost_no_more_than_narrow_ones() -> None:
    wide = Pattern("[\u0100-\u1000b-dx-]{250}")
    assert wide.matches("\u0500c" * 125)
    assert not wide.matches("\u0500e" * 125)
    assert Pattern("[^\\d\\Wa-c]+").matches("xyz_")
    assert not Pattern("[^\\d\\Wa-c]+").matches("xyb")


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
