import re

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from penstock.cursor.group.pattern import InvalidPattern, Pattern

ATOMS = ["a", "b", ".", "[ab]", "[^a]", r"\.", r"\d", r"\w", "-", "[a-c]", r"[\d.]"]


@st.composite
def patterns(draw: st.DrawFn, depth: int = 0) -> str:
    kind = draw(st.integers(0, 5 if depth < 3 else 1))
    if kind <= 1:
        return draw(st.sampled_from(ATOMS))
    if kind == 2:
        return draw(patterns(depth + 1)) + draw(patterns(depth + 1))
    if kind == 3:
        return f"({draw(patterns(depth + 1))}|{draw(patterns(depth + 1))})"
    mark = draw(st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "{0}", "*?", "+?"]))
    return f"(?:{draw(patterns(depth + 1))}){mark}"


@given(patterns(), st.lists(st.text("abc1.-", max_size=6), min_size=1, max_size=8))
@settings(max_examples=300, deadline=None)
def test_agrees_with_the_standard_library(text: str, names: list[str]) -> None:
    pattern = Pattern(text)
    for name in names:
        assert pattern.matches(name) is (re.fullmatch(text, name) is not None), (text, name)


@pytest.mark.parametrize(
    "text",
    ["(a", "a)", "*", "a**", "[a", "a{2", "a{3,1}", "a{999}", "(?=a)", r"\1", "a|*", "\\", "[b-a]"],
)
def test_refuses_what_it_does_not_know(text: str) -> None:
    with pytest.raises(InvalidPattern):
        Pattern(text)


def test_refuses_what_would_be_large() -> None:
    for text in ("a" * 1_025, "(" * 60 + ")" * 60, "((a{200}){200})", "(((((a?){9}){9}){9}){9})"):
        with pytest.raises(InvalidPattern):
            Pattern(text)


def test_the_ends_may_be_marked() -> None:
    assert Pattern("^orders-.*$").matches("orders-eu")
    assert not Pattern("^orders-.*$").matches("my-orders-eu")
    assert Pattern(r"cost\$").matches("cost$")


def test_a_pattern_made_to_hang_a_backtracking_matcher_does_not() -> None:
    assert not Pattern("(a+)+b").matches("a" * 249)
    assert not Pattern("(a|a)*(a|a)*c").matches("a" * 249)


@given(st.text(max_size=30))
@settings(max_examples=200)
def test_any_text_is_a_pattern_or_refused(text: str) -> None:
    try:
        Pattern(text).matches("name")
    except InvalidPattern:
        pass
