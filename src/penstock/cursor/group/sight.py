"""The topics that the patterns of a group's members find, limited to those that each member may
see: a partition assigned to a member that may not read it would not be read at all.

A member's rights are known only during its request, so the topics found are kept until it sends a
request with other rights or other topics. For a member without a request since the group was
loaded, all topics that match count: it gets no assignment before its next request.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from penstock.cursor.group.matches import Matches


class Sight(NamedTuple):
    """What one member may see, at the time of its request."""

    turn: int  # changes whenever a result of ``may_see`` may change
    may_see: Callable[[str], bool]  # a topic, by its name


class _Found(NamedTuple):
    regex: str
    topics_epoch: int
    turn: int
    names: frozenset[str]


class Finds:
    def __init__(self, *, patterns_max: int) -> None:
        self._matches = Matches(patterns_max=patterns_max)  # if the caller has none
        self._found: dict[str, _Found] = {}  # by member, if the member does not see all topics

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
        """Find the member's topics; ``sight`` None: it sees all. True if they may have changed for
        other reasons than a change of the topics."""
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
        """Return whether ``look`` will check for every topic whether the member may see it."""
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
