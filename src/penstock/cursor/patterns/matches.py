"""The topics that the patterns of a tenant's consumer groups match, filtered by what each member
may read. A partition assigned to a member that may not read it would not be consumed.

Matching can take up to a second for one pattern and one name. So results are cached until the topic
is deleted, and ``catch_up`` is a generator that yields about every millisecond; the broker runs it
before a decision. A member's permissions are known only during its request, so the topics found are
kept until its next request. For a member that sent no request since the group was loaded, all
matching topics count, but it gets no assignment before its next request."""

from collections.abc import Callable, Collection, Generator, Mapping
from typing import NamedTuple

import msgspec

from penstock.cursor.patterns.pattern import Pattern
from penstock.model.limits import PATTERN_STATES_KEPT_MAX

# Names found by all patterns together, about 100 bytes each. Beyond this the oldest patterns are
# dropped, and matched again when they are needed.
FOUND_MAX = 500_000
NAMES_AT_ONCE = 4  # names matched between two yields, unless a match itself yields
PATTERNS_MAX = 4_000  # twice the maximum of members in a group


class _Row(msgspec.Struct):
    upto: int = 0  # number of the tenant's names that the pattern was matched against
    found: set[str] = set()
    as_set: frozenset[str] | None = None  # copy of ``found``, or None if out of date


class Matches:
    def __init__(self, *, patterns_max: int = PATTERNS_MAX) -> None:
        self._patterns_max = patterns_max
        self._rows: dict[str, _Row] = {}  # by pattern, oldest first
        self._compiled: dict[str, Pattern] = {}  # oldest first; bounded by ``_states``
        self._states = 0  # total number of states of the compiled patterns
        self._epoch: int | None = None
        self._known: set[str] = set()
        self._names: list[str] = []  # in order of creation, including some deleted topics
        self._found_count = 0

    def check(self, regex: str) -> None:
        if regex not in self._rows:
            self._pattern(regex)
            self._rows[regex] = _Row()

    def of(self, regex: str, topics: Collection[str], epoch: int) -> frozenset[str]:
        """Return the topics whose names match ``regex``. Raises InvalidPattern if it is invalid."""
        for _ in self.catch_up(regex, topics, epoch):
            pass
        row = self._rows[regex]
        if row.as_set is None:
            row.as_set = frozenset(row.found)
        return row.as_set

    def catch_up(
        self, regex: str, topics: Collection[str], epoch: int
    ) -> Generator[None, None, None]:
        """Match a pattern against new topic names. Yields often, so that other tasks can run. If
        the topics change meanwhile, this ends early and must be called again."""
        self._see(topics, epoch)
        if regex not in self._rows:
            self.check(regex)
            yield
            if self._epoch != epoch or regex not in self._rows:
                return
        row = self._rows[regex]
        while row.upto < len(self._names):
            name = self._names[row.upto]
            is_found = False
            if name in self._known and name not in row.found:
                is_found = yield from self._pattern(regex).steps(name)
            if self._epoch != epoch or self._rows.get(regex) is not row:
                return
            row.upto += 1
            if is_found:
                row.found.add(name)
                row.as_set = None
                self._found_count += 1
            if row.upto % NAMES_AT_ONCE == 0:
                yield
                if self._epoch != epoch or self._rows.get(regex) is not row:
                    return
        self._make_room(regex)

    def _pattern(self, regex: str) -> Pattern:
        pattern = self._compiled.get(regex)
        if pattern is None:
            pattern = Pattern(regex)
            self._states += pattern.size
            while self._states > PATTERN_STATES_KEPT_MAX:
                self._states -= self._compiled.pop(next(iter(self._compiled))).size
            self._compiled[regex] = pattern
        return pattern

    def _see(self, topics: Collection[str], epoch: int) -> None:
        if epoch == self._epoch:
            return
        self._epoch = epoch
        gone = self._known.difference(topics)
        self._names += [name for name in topics if name not in self._known]
        self._known = set(topics)
        if gone:
            for row in self._rows.values():
                before = len(row.found)
                row.found -= gone
                if len(row.found) < before:
                    row.as_set = None
                    self._found_count -= before - len(row.found)
        if len(self._names) > 2 * len(self._known) + 1_000:
            count, self._names = len(self._names), list(self._known)
            for row in self._rows.values():
                row.upto = len(self._names) if row.upto == count else 0

    def _make_room(self, kept: str) -> None:
        while len(self._rows) > self._patterns_max or self._found_count > FOUND_MAX:
            oldest = next((regex for regex in self._rows if regex != kept), None)
            if oldest is None:
                return
            self._found_count -= len(self._rows.pop(oldest).found)
            if oldest in self._compiled:
                self._states -= self._compiled.pop(oldest).size


class Topics(msgspec.Struct, frozen=True):
    """All topics of a tenant. ``epoch`` changes whenever another field changes."""

    epoch: int
    by_name: Mapping[str, tuple[str, int]]  # name → id, partition count
    matches: Matches = msgspec.field(default_factory=Matches)  # shared by all epochs


class TopicVisibility(NamedTuple):
    """The topics that a member may see at the time of its request."""

    version: int  # changes whenever a result of ``may_see`` may change
    may_see: Callable[[str], bool]  # called with the name of a topic


class _Found(NamedTuple):
    regex: str
    topics_epoch: int
    version: int
    names: frozenset[str]


class VisibleMatches:
    def __init__(self) -> None:
        self._found: dict[str, _Found] = {}  # by member, if the member does not see all topics

    def update(
        self, member_id: str, regex: str, topics: Topics, visibility: TopicVisibility | None
    ) -> bool:
        """Find the topics that match a member's pattern and that the member may see. Return True if
        they may differ from the topics found for the member before."""
        before = self._found.get(member_id)
        if not self.is_due(member_id, regex, topics, visibility):
            return False
        if visibility is None or not regex:
            return self._found.pop(member_id, None) is not None
        matching = topics.matches.of(regex, topics.by_name, topics.epoch)
        names = frozenset(filter(visibility.may_see, matching))
        self._found[member_id] = _Found(regex, topics.epoch, visibility.version, names)
        return names != (matching if before is None else before.names)

    def is_due(
        self, member_id: str, regex: str, topics: Topics, visibility: TopicVisibility | None
    ) -> bool:
        before = self._found.get(member_id)
        if visibility is None or not regex:
            return before is not None
        return before is None or before[:3] != (regex, topics.epoch, visibility.version)

    def names(self, member_id: str, regex: str, topics: Topics) -> frozenset[str]:
        found = self._found.get(member_id)
        return found.names if found else topics.matches.of(regex, topics.by_name, topics.epoch)

    def forget(self, member_id: str) -> None:
        self._found.pop(member_id, None)
