"""What the patterns of a group's members find among the topics, and of that only what each member
may see: a partition assigned to who may not read it would be read by nobody.

Who may see what is known only while the member asks, so what its pattern found is kept until it
asks again under other rights or with other topics. Of a member that has not asked since the group
was loaded everything counts that its pattern finds: it is told nothing before it asks.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from penstock.cursor.group.matches import Matches


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
        self._matches = Matches(patterns_max=patterns_max)  # where the caller has none
        self._found: dict[str, _Found] = {}  # by member, if it does not see everything

    def look(
        self,
        member_id: str,
        regex: str,
        topics: Collection[str],
        *,
        epoch: int,
        sight: Sight | None,
        matches: Matches | None = None,
    ) -> bool:
        """The member asks; ``sight`` None: it sees everything. True if what it finds may be
        another than before for other reasons than the topics' own."""
        before = self._found.get(member_id)
        if sight is None or not regex:
            self._found.pop(member_id, None)
            return before is not None
        if before is not None and before[:3] == (regex, epoch, sight.turn):
            return False
        matching = (matches or self._matches).of(regex, topics, epoch)
        names = frozenset(filter(sight.may_see, matching))
        self._found[member_id] = _Found(regex, epoch, sight.turn, names)
        return names != (matching if before is None else before.names)

    def is_due(self, member_id: str, regex: str, *, epoch: int, sight: Sight | None) -> bool:
        """Whether ``look`` has to ask for every topic whether the member may see it."""
        before = self._found.get(member_id)
        if sight is None or not regex:
            return before is not None
        return before is None or before[:3] != (regex, epoch, sight.turn)

    def names(
        self,
        member_id: str,
        regex: str,
        topics: Collection[str],
        *,
        epoch: int,
        matches: Matches | None = None,
    ) -> frozenset[str]:
        found = self._found.get(member_id)
        if found is not None:
            return found.names
        return (matches or self._matches).of(regex, topics, epoch)

    def forget(self, member_id: str) -> None:
        self._found.pop(member_id, None)
