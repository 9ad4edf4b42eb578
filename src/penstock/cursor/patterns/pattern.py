"""Topic patterns of consumers, in RE2 syntax.

Patterns come from clients and are matched by a coordinator that many clients share, so matching
takes time linear in the length of the name: it walks a set of states through the name, character by
character (Thompson's construction). The number of states is bounded, and a match runs in steps
between which other requests are served. A pattern must match the whole name."""

from collections.abc import Generator, Iterable

from penstock.cursor.patterns import pattern_syntax as syntax
from penstock.cursor.patterns.pattern_classes import Test, is_word
from penstock.cursor.patterns.pattern_syntax import InvalidPattern, Node, Syntax
from penstock.model.limits import PATTERN_STATES_MAX

STEP_STATES = 2_000  # states visited in one step, about a millisecond

_END = 0  # the accepting state
_FORK = -1  # test number of a state that leads to others without consuming a character
_TOO_LARGE = "expression too large"


class Pattern:
    """A compiled pattern. The constructor raises InvalidPattern."""

    def __init__(self, text: str) -> None:
        parsed, program = Syntax(text), _Program()
        self._start = program.add(parsed.tree, _END)
        self._tests = parsed.tests
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
        """Yield about once a millisecond, then return whether the name matches."""
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
        """Return the given states and all that are reachable from them without consuming a
        character."""
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
    """A cache that maps the number of each test to whether one character passes it."""

    def __init__(self, tests: list[Test], character: str) -> None:
        self._tests = tests
        self._character = character
        self[_FORK] = False

    def __missing__(self, test: int) -> bool:
        passes = self[test] = self._tests[test](self._character)
        return passes


class _Program:
    """The states of a pattern as parallel lists: test number or _FORK, next states, and the
    assertions that must hold to continue."""

    def __init__(self) -> None:
        self.chars = [_FORK]
        self.leads: list[tuple[int, ...]] = [()]
        self.needs = [0]
        self._visits = 0

    def add(self, node: Node, then: int) -> int:
        """Add states that match ``node`` and continue at state ``then``; return the first one."""
        self._visits += 1
        if self._visits > PATTERN_STATES_MAX:  # an empty repetition adds no state
            raise InvalidPattern(_TOO_LARGE)
        if isinstance(node, syntax.Char):
            return self._state(node.test, (then,))
        if isinstance(node, syntax.Assertion):
            return self._state(_FORK, (then,), node.needs)
        if isinstance(node, syntax.Sequence):
            for item in reversed(node.items):
                then = self.add(item, then)
            return then
        if isinstance(node, syntax.Choice):
            leads = tuple([self.add(branch, then) for branch in node.branches])
            return self._state(_FORK, leads)
        end = then
        if node.most is None:
            then = self._state(_FORK, ())
            self.leads[then] = (self.add(node.item, then), end)
        else:
            for _ in range(node.most - node.least):
                then = self._state(_FORK, (self.add(node.item, then), end))
        for _ in range(node.least):
            then = self.add(node.item, then)
        return then

    def _state(self, test: int, leads: tuple[int, ...], needs: int = 0) -> int:
        if len(self.chars) > PATTERN_STATES_MAX:
            raise InvalidPattern(_TOO_LARGE)
        self.chars.append(test)
        self.leads.append(leads)
        self.needs.append(needs)
        return len(self.chars) - 1


def _holding(name: str, at: int) -> int:
    before, after = name[at - 1 : at] if at else "", name[at : at + 1]
    holds = (0 if before else syntax.BEGIN_TEXT) | (0 if after else syntax.END_TEXT)
    holds |= syntax.BEGIN_LINE if before in ("", "\n") else 0
    holds |= syntax.END_LINE if after in ("", "\n") else 0
    is_boundary = is_word(before) is not is_word(after)
    return holds | (syntax.WORD_BOUNDARY if is_boundary else syntax.NO_WORD_BOUNDARY)
