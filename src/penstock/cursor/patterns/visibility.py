"""The topics that the patterns of a group's members find, limited to those that each member may
see: a partition assigned to a member that may not read it would not be read at all.

A member's rights are known only during its request, so the topics found are kept until it sends a
request with other rights or other topics. For a member without a request since the group was
loaded, all topics that match count: it gets no assignment before its next request.
"""

from collections.abc import Callable
from typing import NamedTuple

from penstock.cursor.patterns.matches import Topics


class TopicVisibility(NamedTuple):
    """What one member may see, at the time of its request."""

    version: int  # changes whenever a result of ``may_see`` may change
    may_see: Callable[[str], bool]  # a topic, by its name


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
        """Find the member's topics; ``visibility`` None: it sees all. True if they may have changed
        for other reasons than a change of the topics."""
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
        """Return whether ``update`` will check for every topic whether the member may see it, or
        forget what it may see."""
        before = self._found.get(member_id)
        if visibility is None or not regex:
            return before is not None
        return before is None or before[:3] != (regex, topics.epoch, visibility.version)

    def names(self, member_id: str, regex: str, topics: Topics) -> frozenset[str]:
        found = self._found.get(member_id)
        return (
            topics.matches.of(regex, topics.by_name, topics.epoch) if found is None else found.names
        )

    def forget(self, member_id: str) -> None:
        self._found.pop(member_id, None)
