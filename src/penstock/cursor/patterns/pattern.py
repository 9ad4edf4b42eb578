"""Topic patterns of consumers, in RE2 syntax: Perl syntax without back references and look-around.

Patterns come from clients and are matched by a coordinator that many clients share, so matching
takes time linear in the length of the name: it walks a set of states through the name, character by
character (Thompson's construction). The number of states is bounded, and a match runs in steps
between which other requests are served. A pattern must match the whole name. Error texts are those
of RE2/J, which Kafka shows to its clients."""

import string
from collections.abc import Callable, Generator, Iterable
from typing import Final, TypeAlias

from penstock.cursor.patterns import pattern_classes as classes
from penstock.cursor.patterns.pattern_classes import Test, is_word
from penstock.model.limits import PATTERN_CHARS_MAX, PATTERN_DEPTH_MAX, PATTERN_STATES_MAX

STEP_STATES = 2_000  # states visited in one step, about a millisecond
REPEAT_MAX = 1_000  # as in RE2

_END = 0  # the accepting state
_FORK = -1  # test number of a state that leads to others without consuming a character

# Assertions about the position between two characters, as bits.
_BEGIN_TEXT: Final = 1
_END_TEXT: Final = 2
_BEGIN_LINE: Final = 4
_END_LINE: Final = 8
_WORD_BOUNDARY: Final = 16
_NO_WORD_BOUNDARY: Final = 32

_ASSERTIONS = {"A": _BEGIN_TEXT, "z": _END_TEXT, "b": _WORD_BOUNDARY, "B": _NO_WORD_BOUNDARY}
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_DECIMAL, _OCTAL, _HEX = map(frozenset, (string.digits, string.octdigits, string.hexdigits))
_NAME = frozenset(string.ascii_letters + string.digits + "_")

_TOO_LARGE = "expression too large"
_BAD_RANGE = "invalid character class range"
_BAD_ESCAPE = "invalid escape sequence"
_BAD_PERL = "invalid or unsupported Perl syntax"
_BAD_COUNT = "invalid repeat count"

# Adds states that continue at the given state, and returns the first of them.
_Node: TypeAlias = Callable[[int], int]


class InvalidPattern(ValueError):
    """Raised if a pattern is invalid. The error text is shown to the client."""


class Pattern:
    def __init__(self, text: str) -> None:
        program = _Program(text)
        self._start, self._tests = program.start, program.tests
        self._chars, self._leads, self._needs = program.chars, program.leads, program.needs
        self._has_assertions = any(program.needs)

    @property
    def size(self) -> int:
        return len(self._chars)

    def matches(self, name: str) -> bool:
        steps = self.steps(name)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return bool(end.value)

    def steps(self, name: str) -> Generator[None, None, bool]:
        """Match a name, and return whether it matches. Yields often, so that other tasks run."""
        chars, leads = self._chars, self._leads
        states = self._closure((self._start,), name, 0)
        visited = 0
        for at, character in enumerate(name, 1):
            visited += len(states)
            if visited > STEP_STATES:
                visited = 0
                yield
            passes = _Passes(self._tests, character)
            reached = [leads[state][0] for state in states if passes[chars[state]]]
            if not reached:
                return False
            states = self._closure(reached, name, at)
        return _END in states

    def _closure(self, states: Iterable[int], name: str, at: int) -> set[int]:
        """Return these states and all states that can be reached without reading a character."""
        holds = _holding(name, at) if self._has_assertions else 0
        chars, leads, needs = self._chars, self._leads, self._needs
        found: set[int] = set()
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            if state not in found:
                found.add(state)
                if chars[state] == _FORK and not needs[state] & ~holds:
                    waiting += leads[state]
        return found


class _Passes(dict[int, bool]):
    """A cache of test results for one character: whether it passes the test with a given number."""

    def __init__(self, tests: list[Test], character: str) -> None:
        self._tests = tests
        self._character = character
        self[_FORK] = False

    def __missing__(self, test: int) -> bool:
        passes = self[test] = self._tests[test](self._character)
        return passes


def _holding(name: str, at: int) -> int:
    before, after = name[at - 1 : at] if at else "", name[at : at + 1]
    holds = (0 if before else _BEGIN_TEXT) | (0 if after else _END_TEXT)
    holds |= _BEGIN_LINE if before in ("", "\n") else 0
    holds |= _END_LINE if after in ("", "\n") else 0
    is_boundary = is_word(before) is not is_word(after)
    return holds | (_WORD_BOUNDARY if is_boundary else _NO_WORD_BOUNDARY)


class _Program:
    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_CHARS_MAX:
            raise InvalidPattern(f"expression has more than {PATTERN_CHARS_MAX} characters")
        self._text = text
        self._at = 0
        self._depth = 0
        # Flags of the current group: i (ignore case), m (^ and $ match at line ends), s (a dot
        # matches a line end), U (ungreedy, which does not affect a full match).
        self._flags: frozenset[str] = frozenset()
        self._names: set[str] = set()
        self._literals: dict[tuple[str, bool], int] = {}
        self._visits = 0
        self.tests: list[Test] = []
        self.chars = [_FORK]
        self.leads: list[tuple[int, ...]] = [()]
        self.needs = [0]
        tree = self._choice()
        if self._at < len(text):
            raise InvalidPattern("unexpected )")
        self.start = self._visit(tree)(_END)

    def _visit(self, node: _Node) -> _Node:
        self._visits += 1
        if self._visits > PATTERN_STATES_MAX:  # an empty repetition adds no state
            raise InvalidPattern(_TOO_LARGE)
        return node

    def _state(self, test: int, leads: tuple[int, ...], needs: int = 0) -> int:
        if len(self.chars) > PATTERN_STATES_MAX:
            raise InvalidPattern(_TOO_LARGE)
        self.chars.append(test)
        self.leads.append(leads)
        self.needs.append(needs)
        return len(self.chars) - 1

    def _choice(self) -> _Node:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        if len(branches) == 1:
            return branches[0]
        visit = self._visit
        return lambda then: self._state(_FORK, tuple([visit(each)(then) for each in branches]))

    def _sequence(self) -> _Node:
        items: list[_Node] = []
        is_repeated = False
        while (mark := self._peek()) not in ("", "|", ")"):
            bounds = self._bounds(mark)
            if bounds is None:
                self._item(items)
                is_repeated = False
                continue
            self._take("?")  # a lazy repetition matches the same names
            if is_repeated:
                raise InvalidPattern("invalid nested repetition operator")
            if not items:
                raise InvalidPattern("missing argument to repetition operator")
            items[-1] = self._repeated(items[-1], *bounds)
            is_repeated = True

        def add(then: int) -> int:
            for item in reversed(items):
                then = self._visit(item)(then)
            return then

        return items[0] if len(items) == 1 else add

    def _repeated(self, item: _Node, least: int, most: int | None) -> _Node:
        def add(then: int) -> int:
            end = then
            if most is None:
                then = self._state(_FORK, ())
                self.leads[then] = (self._visit(item)(then), end)
            else:
                for _ in range(most - least):
                    then = self._state(_FORK, (self._visit(item)(then), end))
            for _ in range(least):
                then = self._visit(item)(then)
            return then

        return add

    def _bounds(self, mark: str) -> tuple[int, int | None] | None:
        if mark == "{":
            return self._counts()
        found: tuple[int, int | None] | None
        found = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(mark)
        if found is not None:
            self._at += 1
        return found

    def _counts(self) -> tuple[int, int | None] | None:
        begin = self._at
        self._at += 1
        low = high = self._take_while(_DECIMAL)
        if self._take(","):
            high = self._take_while(_DECIMAL)
        is_open = low != high == ""
        numbers = (low,) if is_open else (low, high)
        if not self._take("}") or not all(n and (n == "0" or n[0] != "0") for n in numbers):
            self._at = begin
            return None
        if any(len(n) > 4 or int(n) > REPEAT_MAX for n in numbers):
            raise InvalidPattern(_BAD_COUNT)
        if not is_open and int(low) > int(high):
            raise InvalidPattern(_BAD_COUNT)
        return int(low), None if is_open else int(high)

    def _item(self, items: list[_Node]) -> None:
        mark = self._next()
        flags = self._flags
        if mark == "(":
            self._group(items)
        elif mark == "[":
            items.append(self._char(self._bracket()))
        elif mark == ".":
            is_any = "s" in flags
            items.append(self._char(lambda c: is_any or c != "\n"))
        elif mark == "^":
            items.append(self._assertion(_BEGIN_LINE if "m" in flags else _BEGIN_TEXT))
        elif mark == "$":
            items.append(self._assertion(_END_LINE if "m" in flags else _END_TEXT))
        elif mark == "\\":
            self._escaped(items)
        else:
            items.append(self._literal(mark))

    def _group(self, items: list[_Node]) -> None:
        before = self._flags
        if self._take("?") and not self._opens_group():
            return
        self._depth += 1
        if self._depth > PATTERN_DEPTH_MAX:
            raise InvalidPattern("expression nests too deeply")
        items.append(self._choice())
        if not self._take(")"):
            raise InvalidPattern("missing closing )")
        self._depth -= 1
        self._flags = before

    def _opens_group(self) -> bool:
        """Read what follows ``(?``. Return False if it only sets flags, as in ``(?i)``."""
        if self._text.startswith(("P<", "<"), self._at):
            self._named_group()
            return True
        is_set, is_needed = True, False
        while (mark := self._peek()) in ("i", "m", "s", "U", "-"):
            self._at += 1
            if mark != "-":
                self._flags = self._flags | {mark} if is_set else self._flags - {mark}
                is_needed = False
            elif is_set:
                is_set, is_needed = False, True
            else:
                raise InvalidPattern(_BAD_PERL)
        if mark not in (":", ")") or is_needed:
            raise InvalidPattern(_BAD_PERL)
        self._at += 1
        return mark == ":"

    def _named_group(self) -> None:
        begin = self._text.index("<", self._at) + 1
        end = self._text.find(">", begin)
        name = self._text[begin:end] if end > 0 else ""
        if not name or not _NAME.issuperset(name):
            raise InvalidPattern("invalid named capture")
        if name in self._names:
            raise InvalidPattern("duplicate capture group name")
        self._names.add(name)
        self._at = end + 1

    def _escaped(self, items: list[_Node]) -> None:
        mark = self._peek()
        if mark in _ASSERTIONS:
            self._at += 1
            items.append(self._assertion(_ASSERTIONS[mark]))
        elif mark == "Q":
            end = self._text.find("\\E", self._at)
            quoted = self._text[self._at + 1 : end if end > 0 else None]
            self._at = end + 2 if end > 0 else len(self._text)
            items += [self._literal(character) for character in quoted]
        elif (test := self._class_escape()) is not None:
            items.append(self._char(test))
        else:
            items.append(self._literal(self._escape()))

    def _assertion(self, needs: int) -> _Node:
        return lambda then: self._state(_FORK, (then,), needs)

    def _literal(self, character: str) -> _Node:
        key = (character, "i" in self._flags)
        number = self._literals.get(key)
        if number is not None:
            return lambda then: self._state(number, (then,))
        self._literals[key] = len(self.tests)
        return self._char(classes.literal(character, is_folded="i" in self._flags))

    def _char(self, test: Test) -> _Node:
        number = len(self.tests)
        self.tests.append(test)
        return lambda then: self._state(number, (then,))

    def _bracket(self) -> Test:
        is_negated = self._take("^")
        tests: list[Test] = []
        ranges: list[tuple[str, str]] = []
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            test = self._class_in_bracket()
            if test is not None:
                tests.append(test)
                continue
            low = high = self._class_character()
            if self._peek() == "-" and self._peek(1) != "]":
                self._at += 1
                high = self._class_character()
                if high < low:
                    raise InvalidPattern(_BAD_RANGE)
            ranges.append((low, high))
        self._at += 1
        if ranges:
            tests.append(classes.in_ranges(tuple(ranges), is_folded="i" in self._flags))
        return classes.any_of(tests, is_negated=is_negated)

    def _class_in_bracket(self) -> Test | None:
        if self._text.startswith("[:", self._at):
            end = self._text.find(":]", self._at)
            if end < 0:
                return None
            name = self._text[self._at + 2 : end]
            ranges = classes.POSIX.get(name.removeprefix("^"))
            if ranges is None:
                raise InvalidPattern(_BAD_RANGE)
            self._at = end + 2
            is_negated = name.startswith("^")
            return classes.in_ranges(ranges, is_folded="i" in self._flags, is_negated=is_negated)
        if not self._take("\\"):
            return None
        test = self._class_escape()
        if test is None:
            self._at -= 1
        return test

    def _class_character(self) -> str:
        mark = self._peek()
        if not mark:
            raise InvalidPattern("missing closing ]")
        self._at += 1
        return self._escape() if mark == "\\" else mark

    def _class_escape(self) -> Test | None:
        """Read a character class after a backslash (``d``, ``p{Greek}``), or return None."""
        mark = self._peek()
        lower = mark.lower()
        if lower == "p":
            self._at += 1
            return self._unicode_class(is_negated=mark == "P")
        if lower not in classes.PERL:
            return None
        self._at += 1
        ranges = classes.PERL[lower]
        return classes.in_ranges(ranges, is_folded="i" in self._flags, is_negated=mark != lower)

    def _unicode_class(self, *, is_negated: bool) -> Test:
        end = self._at + 1
        name = self._peek()
        if name == "{":
            end = self._text.find("}", self._at) + 1
            name = self._text[self._at + 1 : end - 1] if end else ""
        if name.startswith("^"):
            name, is_negated = name[1:], not is_negated
        test = classes.unicode_class(name, is_folded="i" in self._flags, is_negated=is_negated)
        if test is None:
            raise InvalidPattern(_BAD_RANGE)
        self._at = end
        return test

    def _escape(self) -> str:
        mark = self._peek()
        if not mark:
            raise InvalidPattern("trailing backslash at end of expression")
        self._at += 1
        if mark in _CONTROLS:
            return _CONTROLS[mark]
        if mark in _OCTAL and (mark == "0" or self._peek() in _OCTAL):
            digits = mark
            while len(digits) < 3 and self._peek() in _OCTAL:
                digits += self._next()
            return chr(int(digits, 8))
        if mark == "x":
            return self._hex()
        if mark.isascii() and mark.isalnum():
            raise InvalidPattern(_BAD_ESCAPE)
        return mark

    def _hex(self) -> str:
        if self._take("{"):
            digits = self._take_while(_HEX)
            is_valid = bool(digits) and self._take("}")
        else:
            digits = self._text[self._at : self._at + 2]
            self._at += 2
            is_valid = len(digits) == 2 and _HEX.issuperset(digits)
        if not is_valid or int(digits, 16) > 0x10FFFF:
            raise InvalidPattern(_BAD_ESCAPE)
        return chr(int(digits, 16))

    def _peek(self, ahead: int = 0) -> str:
        return self._text[self._at + ahead : self._at + ahead + 1]

    def _next(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def _take(self, mark: str) -> bool:
        if not self._text.startswith(mark, self._at):
            return False
        self._at += 1
        return True

    def _take_while(self, allowed: frozenset[str]) -> str:
        begin = self._at
        while self._peek() in allowed:
            self._at += 1
        return self._text[begin : self._at]
