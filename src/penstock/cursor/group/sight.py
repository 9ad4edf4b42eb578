"""What the patterns of a group's members find among the topics, and of that only what each member
may see: a partition assigned to who may not read it would be read by nobody.

Who may see what is known only while the member asks, so what its pattern found is kept until it
asks again under other rights or with other topics. Of a member that has not asked since the group
was loaded everything counts that its pattern finds: it is told nothing before it asks.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from penstock.cursor.group.pattern import Pattern


class Sight(NamedTuple):
    """Of one member, as it asks."""

    turn: int  # another one whenever any answer may be another
    may_see: Callable[[str], bool]  # a topic, by its name


class _Found(NamedTuple):
    regex: str
    topics_epoch: int
    turn: int
    names: frozenset[str]


class Finds:
    def __init__(self, *, patterns_max: int) -> None:
        self._patterns_max = patterns_max
        self._patterns: dict[str, Pattern] = {}
        self._matches: dict[str, frozenset[str]] = {}  # by pattern, of the topics of that epoch:
        self._epoch: int | None = None
        self._found: dict[str, _Found] = {}  # by member, if it does not see everything

    def look(
        self,
        member_id: str,
        regex: str,
        topics: Collection[str],
        *,
        epoch: int,
        sight: Sight | None,
    ) -> bool:
        """The member asks; ``sight`` None: it sees everything. True if what it finds may be
        another than before for other reasons than the topics' own."""
        before = self._found.get(member_id)
        if sight is None or not regex:
            self._found.pop(member_id, None)
            return before is not None
        if before is not None and before[:3] == (regex, epoch, sight.turn):
            return False
        matching = self._matching(regex, topics, epoch)
        names = frozenset(filter(sight.may_see, matching))
        self._found[member_id] = _Found(regex, epoch, sight.turn, names)
        return names != (matching if before is None else before.names)

    def names(
        self, member_id: str, regex: str, topics: Collection[str], *, epoch: int
    ) -> frozenset[str]:
        found = self._found.get(member_id)
        return self._matching(regex, topics, epoch) if found is None else found.names

    def forget(self, member_id: str) -> None:
        self._found.pop(member_id, None)

    def _matching(self, regex: str, topics: Collection[str], epoch: int) -> frozenset[str]:
        if epoch != self._epoch:
            self._matches.clear()
            self._epoch = epoch
        found = self._matches.get(regex)
        if found is None:
            if len(self._patterns) > self._patterns_max:
                self._patterns.clear()
                self._matches.clear()
            pattern = self._patterns.setdefault(regex, Pattern(regex))
            found = self._matches[regex] = frozenset(filter(pattern.matches, topics))
        return found
