"""Topic patterns of consumers, matched in time linear in the name.

A pattern comes from a client and is matched against every topic name by the one coordinator that
all its neighbours share, so a backtracking matcher would let one client stop it. This one walks a
set of states through the name, character by character (Thompson's construction), with a bound on
the states, and in steps between which others can be served. It knows what topic patterns are
made of:

    literals  .  [abc]  [^a-z]  \\d \\w \\s \\D \\W \\S  \\. and other escaped marks
    x* x+ x? x{m} x{m,} x{m,n}  and their lazy forms   (x) (?:x)   x|y   ^ and $ at the ends

The whole name must match. Back references and look-around are refused, as RE2 refuses them.
"""

from bisect import bisect_right
from collections.abc import Callable, Generator
from typing import TypeAlias

import msgspec

# Enough for x{1000}. A character takes up to a millisecond with so many; since a match is done in
# steps, the bound is on memory and on the time to read a pattern, about 5 ms.
STATES_MAX = 5_000
STEP_STATES = 2_000  # visited in one step, about a millisecond
PATTERN_CHARS_MAX = 1_024
REPEAT_MAX = 250

Test: TypeAlias = Callable[[str], bool]

_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_DIGIT = frozenset("0123456789")
_SPACE = frozenset(" \t\n\r\f")
_CLASSES: dict[str, tuple[frozenset[str], bool]] = {
    "d": (_DIGIT, False),
    "w": (_WORD, False),
    "s": (_SPACE, False),
    "D": (_DIGIT, True),
    "W": (_WORD, True),
    "S": (_SPACE, True),
}


class InvalidPattern(ValueError):
    """Says what is wrong, for the client."""


class _State:
    """Either a test that leads to ``next``, or a fork to several states that costs no character."""

    __slots__ = ("forks", "next", "test")

    def __init__(self, test: Test | None = None) -> None:
        self.test = test
        self.next: _State | None = None
        self.forks: list[_State] = []


class _Piece(msgspec.Struct, frozen=True, gc=False):
    start: _State
    end: _State  # a fork without forks yet: where the piece goes on


class Pattern:
    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_CHARS_MAX:
            raise InvalidPattern(f"a pattern has at most {PATTERN_CHARS_MAX} characters")
        parser = _Parser(text)
        piece = parser.parse()
        self.text = text
        self._start = piece.start
        self._end = piece.end

    def matches(self, name: str) -> bool:
        steps = self.steps(name)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return bool(end.value)

    def steps(self, name: str) -> Generator[None, None, bool]:
        """Whether the name matches, in steps: yields about once a millisecond."""
        states = _closure([self._start])
        visited = 0
        for character in name:
            visited += len(states)
            if visited > STEP_STATES:
                visited = 0
                yield
            states = _closure(
                [
                    s.next
                    for s in states
                    if s.test is not None and s.next is not None and s.test(character)
                ]
            )
            if not states:
                return False
        return self._end in states


def _closure(states: list[_State]) -> set[_State]:
    found: set[_State] = set()
    waiting = states
    while waiting:
        state = waiting.pop()
        if state not in found:
            found.add(state)
            waiting.extend(state.forks)
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        text = text[1:] if text.startswith("^") else text
        if text.endswith("$") and not _is_escaped_end(text):
            text = text[:-1]
        self._text = text
        self._at = 0
        self._states = 0
        self._depth = 0

    def parse(self) -> _Piece:
        piece = self._choice()
        if self._at < len(self._text):
            raise InvalidPattern(f"unexpected {self._text[self._at]!r} at {self._at}")
        return piece

    # ── Grammar ──────────────────────────────────────────────────────────────────────────────
    def _choice(self) -> _Piece:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        if len(branches) == 1:
            return branches[0]
        start, end = self._state(), self._state()
        for branch in branches:
            start.forks.append(branch.start)
            branch.end.forks.append(end)
        return _Piece(start, end)

    def _sequence(self) -> _Piece:
        start = end = self._state()
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            piece = self._repeated()
            end.forks.append(piece.start)
            end = piece.end
        return _Piece(start, end)

    def _repeated(self) -> _Piece:
        begin = self._at
        piece = self._atom()
        stop = self._at
        bounds = self._bounds()
        if bounds is None:
            return piece
        self._take("?")  # lazy: the same names match
        if self._bounds() is not None:
            raise InvalidPattern(f"a repetition of a repetition at {self._at}")
        least, most = bounds
        after = self._at
        start = end = self._state()
        for _ in range(least):
            piece = self._copy(begin, stop)
            end.forks.append(piece.start)
            end = piece.end
        if most is None:
            end = self._star(end, self._copy(begin, stop))
        else:
            end = self._optional(end, begin, stop, most - least)
        self._at = after
        return _Piece(start, end)

    def _optional(self, before: _State, begin: int, stop: int, count: int) -> _State:
        """Up to ``count`` further copies, each of which may be the last."""
        done = self._state()
        before.forks.append(done)
        for _ in range(count):
            piece = self._copy(begin, stop)
            before.forks.append(piece.start)
            before = piece.end
            before.forks.append(done)
        return done

    def _star(self, before: _State, piece: _Piece) -> _State:
        loop, end = self._state(), self._state()
        before.forks.append(loop)
        loop.forks += (piece.start, end)
        piece.end.forks.append(loop)
        return end

    def _copy(self, begin: int, stop: int) -> _Piece:
        """The atom again, with states of its own: simply read again."""
        self._at = begin
        piece = self._atom()
        assert self._at == stop, "the same text reads the same"
        return piece

    def _bounds(self) -> tuple[int, int | None] | None:
        for mark, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(mark):
                return bounds
        if self._peek() != "{":
            return None
        close = self._text.find("}", self._at)
        inside = self._text[self._at + 1 : close] if close > 0 else ""
        low, comma, high = inside.partition(",")
        if not low.isdecimal() or (high and not high.isdecimal()):
            raise InvalidPattern(f"expected {{m,n}} at {self._at}")
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if least > REPEAT_MAX or (most is not None and not least <= most <= REPEAT_MAX):
            raise InvalidPattern(f"a repetition outside 0 to {REPEAT_MAX} at {self._at}")
        self._at = close + 1
        return least, most

    def _atom(self) -> _Piece:
        mark = self._next()
        if mark == "(":
            return self._group()
        if mark == "[":
            return self._single(self._bracket())
        if mark == ".":
            return self._single(lambda _: True)
        if mark == "\\":
            members, is_negated = self._escape()
            return self._single(_member_test(members, is_negated))
        if mark in "*+?{)|^$":
            raise InvalidPattern(f"unexpected {mark!r} at {self._at - 1}")
        return self._single(_member_test(frozenset(mark), False))

    def _group(self) -> _Piece:
        if self._take("?") and not self._take(":"):
            raise InvalidPattern(f"only (?: is known of the (? forms, at {self._at}")
        self._depth += 1
        if self._depth > 50:
            raise InvalidPattern("groups are nested too deeply")
        piece = self._choice()
        self._depth -= 1
        if not self._take(")"):
            raise InvalidPattern("a group is not closed")
        return piece

    def _bracket(self) -> Test:
        is_negated = self._take("^")
        members: set[str] = set()
        negated: set[frozenset[str]] = set()
        ranges: list[tuple[str, str]] = []
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            low = self._next()
            if low == "\\":
                escaped, is_class_negated = self._escape()
                if is_class_negated:
                    negated.add(escaped)
                    continue
                if len(escaped) != 1:
                    members |= escaped
                    continue
                low = min(escaped)
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._next()
                if high == "\\":
                    escaped, _ = self._escape()
                    high = min(escaped) if len(escaped) == 1 else ""
                if high < low or ord(high) - ord(low) > 0x1_000:
                    raise InvalidPattern(f"a bad range at {self._at}")
                ranges.append((low, high))
            else:
                members.add(low)
        self._at += 1
        return _bracket_test(frozenset(members), tuple(negated), ranges, is_negated)

    def _escape(self) -> tuple[frozenset[str], bool]:
        mark = self._next()
        if mark in _CLASSES:
            return _CLASSES[mark]
        if mark.isalnum():
            raise InvalidPattern(f"\\{mark} is not known, at {self._at - 1}")
        return frozenset(mark), False

    # ── Characters and states ────────────────────────────────────────────────────────────────
    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        mark = self._peek()
        if not mark:
            raise InvalidPattern("the pattern ends too early")
        self._at += 1
        return mark

    def _take(self, mark: str) -> bool:
        if self._peek() != mark:
            return False
        self._at += 1
        return True

    def _single(self, test: Test) -> _Piece:
        start, end = self._state(test), self._state()
        start.next = end
        return _Piece(start, end)

    def _state(self, test: Test | None = None) -> _State:
        self._states += 1
        if self._states > STATES_MAX:
            raise InvalidPattern("the pattern is too large")
        return _State(test)


def _member_test(members: frozenset[str], is_negated: bool) -> Test:
    if is_negated:
        return lambda c: c not in members
    return members.__contains__


def _bracket_test(
    members: frozenset[str],
    negated: tuple[frozenset[str], ...],
    ranges: list[tuple[str, str]],
    is_negated: bool,
) -> Test:
    """Ranges are merged and searched: written out as members, a short pattern could take long."""
    lows: list[str] = []
    highs: list[str] = []
    for low, high in sorted(ranges):
        if highs and low <= highs[-1]:
            highs[-1] = max(highs[-1], high)
        else:
            lows.append(low)
            highs.append(high)

    def test(c: str) -> bool:
        at = bisect_right(lows, c) - 1
        is_in = (
            c in members or (at >= 0 and c <= highs[at]) or any(c not in each for each in negated)
        )
        return is_in is not is_negated

    return test


def _is_escaped_end(text: str) -> bool:
    backslashes = len(text) - 1 - len(text[:-1].rstrip("\\"))
    return backslashes % 2 == 1
