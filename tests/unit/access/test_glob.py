import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.access.conditions import Globs, _Given


def slow(pattern: str, text: str) -> bool:
    """The definition: one row of answers for each character of the pattern."""
    reach = {0}  # how much of the text can be matched so far
    for char in pattern:
        if char == "*":
            reach = set(range(min(reach), len(text) + 1)) if reach else reach
        else:
            reach = {at + 1 for at in reach if at < len(text) and char in ("?", text[at])}
    return len(text) in reach


@settings(max_examples=400)
@given(pattern=st.text("ab*?.\n", max_size=10), text=st.text("ab.\n", max_size=12))
@example(pattern="*a*a", text="a")
@example(pattern="**", text="")
@example(pattern="a*b*a", text="aba")
@example(pattern="*?", text="")
def test_wildcards_match_as_they_are_defined(pattern: str, text: str) -> None:
    assert Globs([pattern]).match(text) is slow(pattern, text)


@given(patterns=st.lists(st.text("ab*?", max_size=5), max_size=4), text=st.text("ab", max_size=5))
def test_several_patterns_match_what_any_of_them_matches(patterns: list[str], text: str) -> None:
    assert Globs(patterns).match(text) is any(slow(one, text) for one in patterns)


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        ("group/${*}", "group/*", True),
        ("group/${*}", "group/x", False),
        ("${?}*", "?more", True),
        ("${?}*", "more", False),
        ("${$}{a}", "${a}", True),
        ("${*}${*}", "**", True),
        ("a${*}*", "a*b", True),
    ],
)
def test_a_wildcard_can_be_meant_as_it_stands(pattern: str, text: str, is_match: bool) -> None:
    assert Globs([pattern], has_escapes=True).match(text) is is_match
    assert not Globs([pattern]).match(text)  # without escapes the dollar is one


def test_texts_without_wildcards_are_read_the_same_way() -> None:
    assert _Given(["a${*}b", "${$}"], "", True, False).texts == ["a*b", "$"]
    assert _Given(["a${*}b"], "", False, False).texts == ["a${*}b"]


@pytest.mark.parametrize(
    "pattern", ["*a" * 500 + "b", "*" * 2_000 + "b", "*" + "?" * 1_000 + "b", "a*" * 1_000 + "b"]
)
def test_no_pattern_takes_long(pattern: str) -> None:
    globs = Globs([pattern])
    started = time.process_time()
    assert not globs.match("a" * 2_000)
    assert time.process_time() - started < 0.5  # exponential would be for ever
