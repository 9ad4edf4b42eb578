import gc
import re
import time

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from penstock.cursor.patterns.pattern import InvalidPattern, Pattern
from penstock.model.limits import PATTERN_CHARS_MAX, PATTERN_STATES_MAX

ATOMS = ["a", "b", ".", "[ab]", "[^a]", r"\.", r"\d", r"\w", "-", "[a-c]", r"[\d.]", r"\x41", r"\W"]
ASSERTIONS = ["^", "$", r"\b", r"\A"]
# These mean something else to Python's re, or nothing.
OF_RE2 = [
    *ASSERTIONS,
    r"\B",
    r"\z",
    r"\pL",
    r"\P{Nd}",
    r"\p{^Lu}",
    r"\p{Latin}",
    r"\Qa.b\E",
    "[[:alpha:]]",
    "[[:^upper:]b]",
    "(?i)",
    "(?s-i)",
    "(?mi:^A$)",
    "(?i:k|[^B-C])",
    r"\x{212A}",
    r"\060",
    "a{,3}",
    "",
]
NAMES = st.text("abcABC10.-_{,}\n\u017f\u212aé", max_size=6)


@st.composite
def patterns(draw: st.DrawFn, atoms: list[str], depth: int = 0) -> str:
    kind = draw(st.integers(0, 5 if depth < 3 else 1))
    if kind <= 1:
        return draw(st.sampled_from(atoms))
    if kind == 2:
        return draw(patterns(atoms, depth + 1)) + draw(patterns(atoms, depth + 1))
    if kind == 3:
        return f"({draw(patterns(atoms, depth + 1))}|{draw(patterns(atoms, depth + 1))})"
    mark = draw(st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "{0}", "*?", "+?"]))
    return f"(?:{draw(patterns(atoms, depth + 1))}){mark}"


@given(patterns([*ATOMS, *ASSERTIONS]), st.lists(NAMES, min_size=1, max_size=8))
@settings(max_examples=300, deadline=None)
def test_agrees_with_the_standard_library(text: str, names: list[str]) -> None:
    pattern = Pattern(text)
    expected = re.compile(text.replace("$", r"\Z"), re.ASCII)
    for name in names:
        assert pattern.matches(name) is (expected.fullmatch(name) is not None), (text, name)


@given(patterns([*ATOMS, *OF_RE2]), st.lists(NAMES, min_size=1, max_size=8))
@settings(max_examples=500, deadline=None)
def test_matches_what_re2_matches(text: str, names: list[str]) -> None:
    re2 = pytest.importorskip("re2", reason="google-re2 is not installed")
    pattern = Pattern(text)
    expected = re2.compile(text)
    for name in names:
        assert pattern.matches(name) is (expected.fullmatch(name) is not None), (text, name)


@given(st.text("ab(?:)|*+{1,2}[]^-$.\\dpLxiPQEzZ<>n", max_size=9))
@settings(max_examples=1_000, deadline=None)
def test_rejects_what_re2_rejects(text: str) -> None:
    re2 = pytest.importorskip("re2", reason="google-re2 is not installed")
    quiet = re2.Options()
    quiet.log_errors = False
    try:
        re2.compile(text, quiet)
        is_valid = True
    except re2.error:
        is_valid = False
    try:
        Pattern(text)
    except InvalidPattern:
        assert not is_valid, text
    else:
        assert is_valid, text


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        ("(^a.*)", ["a", "ab"], ["ba", ""]),
        ("(^a)|(^b)", ["a", "b"], ["ab", "c"]),
        ("(^a.*)|(^b.*)", ["a1", "b1"], ["c1", "xa1"]),
        ("a|^b", ["a", "b"], ["ab"]),
        ("$a", [], ["a", "$a", ""]),
        ("^*", [""], ["a"]),
        (r"\A.*\z", ["", "abc"], ["a\nb"]),
        (r"\bx", ["x"], ["xx", "ax"]),
        (r"a\b-\bb", ["a-b"], ["a--b"]),
        (r"a\Bb", ["ab"], ["a-b"]),
        ("(?i)x", ["x", "X"], ["y"]),
        ("(?i)[^x]", ["y"], ["x", "X"]),
        ("a(?i)b", ["ab", "aB"], ["AB"]),
        ("(?i:a)b", ["Ab", "ab"], ["AB"]),
        ("(?i-i)a", ["a"], ["A"]),
        ("(?s).", ["a", "\n"], [""]),
        (".", ["a"], ["\n"]),
        ("(?m)a$\n^b", ["a\nb"], ["ab"]),
        ("a$\n^b", [], ["a\nb"]),
        ("(?P<n>a)", ["a"], ["n"]),
        ("(?<n>a)", ["a"], ["n"]),
        (r"\pL", ["a", "Z", "ß"], ["1", "ab"]),
        (r"\p{L}+", ["abc"], ["a1", ""]),
        (r"\P{L}+", ["1_"], ["a1"]),
        (r"\p{Greek}", ["α"], ["a", "1"]),
        (r"\p{Latin}\p{Common}", ["a1", "é-"], ["1a", "α1"]),
        (r"\x41\x{42}", ["AB"], ["ab"]),
        (r"\101", ["A"], ["\x01"]),
        (r"\Qa.\E.", ["a.x"], ["abx"]),
        (r"\Qa.b", ["a.b"], ["axb"]),
        ("a{1000}", ["a" * 1000], ["a" * 999, "a" * 1001]),
        ("a{0,1000}", ["", "a" * 1000], ["a" * 1001]),
        ("a{,3}", ["a{,3}"], ["", "a", "aaa"]),
        ("a{", ["a{"], ["a"]),
        ("a{01}", ["a{01}"], ["a"]),
        ("", [""], ["a"]),
        ("a||b", ["a", "", "b"], ["|"]),
        ("[[:alpha:]]", ["a", "Z"], ["1", ":", "a]"]),
        ("[[:^alpha:]_]+", ["1_"], ["a"]),
        ("[[:alpha]", [":", "a", "["], ["b"]),
        ("[]a-]", ["]", "a", "-"], ["b"]),
        (r"[\d\-x]", ["1", "-", "x"], ["d"]),
        ("(a*)*b", ["b", "aab"], ["a"]),
        (r"cost\$", ["cost$"], ["cost"]),
    ],
)
def test_re2_syntax(text: str, matching: list[str], others: list[str]) -> None:
    pattern = Pattern(text)
    assert [name for name in matching if not pattern.matches(name)] == []
    assert [name for name in others if pattern.matches(name)] == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(a", "missing closing )"),
        ("(?:a", "missing closing )"),
        ("a)", "unexpected )"),
        ("[a", "missing closing ]"),
        ("a++", "invalid nested repetition operator"),
        ("a**", "invalid nested repetition operator"),
        ("x{2}{3}", "invalid nested repetition operator"),
        ("*", "missing argument to repetition operator"),
        ("a|*", "missing argument to repetition operator"),
        ("(?i)*", "missing argument to repetition operator"),
        ("x{2,1}", "invalid repeat count"),
        ("a{1001}", "invalid repeat count"),
        ("a{0,1001}", "invalid repeat count"),
        ("a{99999999999}", "invalid repeat count"),
        (r"[a-\d]", "invalid escape sequence"),
        (r".*\Z", "invalid escape sequence"),
        (r"\C", "invalid escape sequence"),
        (r"\1", "invalid escape sequence"),
        (r"\8", "invalid escape sequence"),
        (r"\x4", "invalid escape sequence"),
        (r"\x{110000}", "invalid escape sequence"),
        (r"[\b]", "invalid escape sequence"),
        ("[b-a]", "invalid character class range"),
        ("[[:foo:]]", "invalid character class range"),
        (r"\p{Foo}", "invalid character class range"),
        (r"\p{L", "invalid character class range"),
        (r"\p", "invalid character class range"),
        ("(?=a)", "invalid or unsupported Perl syntax"),
        ("(?!a)", "invalid or unsupported Perl syntax"),
        ("(?i-)a", "invalid or unsupported Perl syntax"),
        ("(?", "invalid or unsupported Perl syntax"),
        ("(?<=a)", "invalid named capture"),
        ("(?P<a-b>c)", "invalid named capture"),
        ("(?<n>a)(?P<n>b)", "duplicate capture group name"),
        ("a\\", "trailing backslash at end of expression"),
        ("[\\", "trailing backslash at end of expression"),
    ],
)
def test_rejections_name_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidPattern) as caught:
        Pattern(text)
    assert str(caught.value) == reason


LARGE = {
    "a" * (PATTERN_CHARS_MAX + 1): "expression has more than 2048 characters",
    "(" * 101 + ")" * 101: "expression nests too deeply",
    "((a{200}){200})": "expression too large",
    "(((((a?){9}){9}){9}){9})": "expression too large",
    "((((){1000}){1000}){1000})": "expression too large",
    "(\\b|^|$|a){0,900}": "expression too large",
}


@pytest.mark.parametrize("text", LARGE)
def test_rejects_what_would_be_large(text: str) -> None:
    with pytest.raises(InvalidPattern) as caught:
        Pattern(text)
    assert str(caught.value) == LARGE[text]


@pytest.mark.parametrize(
    "text",
    [
        *LARGE,
        "a" * PATTERN_CHARS_MAX,
        "[a-z]" * (PATTERN_CHARS_MAX // 5),
        "[" + "a-z" * (PATTERN_CHARS_MAX // 3 - 1) + "]",
        "(?i)" + "[a-z]" * (PATTERN_CHARS_MAX // 5 - 1),
        r"\pL" * (PATTERN_CHARS_MAX // 3),
        "(" * 100 + "a" + ")" * 100,
        "a|" * (PATTERN_CHARS_MAX // 2),
        "(a?){1000}",
        "(.?.?){0,900}",
        "(\\b|^|$|a){0,700}",
    ],
)
def test_no_step_takes_long(text: str) -> None:
    """A pattern is compiled, and each step of a match is done, without pause: in CPU time, since
    other processes run on the machine."""
    gc.collect()
    gc.disable()  # what the other tests have left behind is not measured
    try:
        assert longest_step(text) < 0.02
    finally:
        gc.enable()


def longest_step(text: str) -> float:
    begun = time.thread_time()
    try:
        pattern = Pattern(text)
    except InvalidPattern:
        return time.thread_time() - begun
    longest = time.thread_time() - begun
    assert pattern.size <= PATTERN_STATES_MAX + 1
    steps = pattern.steps("aZ" * 124)
    for _ in range(50):
        begun = time.thread_time()
        is_over = next(steps, True) is True
        longest = max(longest, time.thread_time() - begun)
        if is_over:
            break
    return longest


def test_a_pattern_made_to_hang_a_backtracking_matcher_does_not() -> None:
    assert not Pattern("(a+)+b").matches("a" * 249)
    assert not Pattern("(a|a)*(a|a)*c").matches("a" * 249)


@given(st.text(max_size=30))
@settings(max_examples=200)
def test_any_text_is_a_pattern_or_rejected(text: str) -> None:
    try:
        Pattern(text).matches("name")
    except InvalidPattern:
        pass
