"""The topics of this node as groups see them: by account and name, with an epoch that rises with
every change that matters to a group; and matching the patterns of consumer groups against them."""

import asyncio
from collections.abc import Callable
from functools import partial

from penstock.broker.coordination.group_coordinator import GroupCoordinator
from penstock.cursor.groups.consumer import ConsumerHeartbeat
from penstock.cursor.groups.groups import Groups
from penstock.cursor.patterns.matches import Matches, Topics
from penstock.cursor.patterns.pattern_syntax import InvalidPattern
from penstock.cursor.patterns.visibility import TopicVisibility
from penstock.model.names import is_internal, split_scoped
from penstock.model.topic import Topic

SEEN_AT_ONCE = 32  # topics; authorizing one takes up to 50 µs
_NO_PATTERNS: tuple[frozenset[str], str] = (frozenset(), "")
_NO_TOPICS = Topics(0, {})


class GroupTopics:
    def __init__(self, own_account: str, region: str) -> None:
        self._own_account = own_account
        self._region = region
        # By account; changed in place, which the epoch shows.
        self._by_name: dict[str, dict[str, tuple[str, int]]] = {}
        self._topics: dict[str, Topics] = {}
        self._epoch = 0

    def of(self, group_id: str) -> Topics:
        account, _ = split_scoped(group_id, own_account=self._own_account)
        return self._topics.get(account, _NO_TOPICS)

    def id_of(self, group_id: str, name: str) -> str | None:
        entry = self.of(group_id).by_name.get(name)
        return None if entry is None else entry[0]

    def changed(self, before: Topic | None, after: Topic | None) -> None:
        """Follow a change of the catalog. Groups cannot subscribe to shares and internal topics."""
        topic = after or before
        assert topic is not None
        if topic.is_share or topic.region != self._region or is_internal(topic.name):
            return
        by_name = self._by_name.setdefault(topic.account, {})
        if after is None:
            by_name.pop(topic.name, None)
        else:
            entry = (after.topic_id, after.partition_count)
            # With another policy, other members may see the topic.
            is_same = before is None or before.settings.policy == after.settings.policy
            if by_name.get(after.name) == entry and is_same:
                return
            by_name[after.name] = entry
        self._epoch += 1
        known = self._topics.get(topic.account)
        matches = Matches() if known is None else known.matches
        self._topics[topic.account] = Topics(self._epoch, by_name, matches)
        if not by_name:
            del self._by_name[topic.account], self._topics[topic.account]


async def match_patterns(
    coordinator: GroupCoordinator,
    group_id: str,
    request: ConsumerHeartbeat,
    visibility: TopicVisibility | None,
    *,
    topics_of: Callable[[], Topics],
) -> TopicVisibility | None:
    """Match the patterns of the group and find out which topics the member may see, before the
    decision, which cannot be interrupted. Each step takes about a millisecond. Returns the
    visibility with the results in memory."""
    seen: dict[str, bool] = {}
    has_waited = True
    while has_waited:
        has_waited = False
        topics = topics_of()
        patterns, seen_by = coordinator.peek(
            _NO_PATTERNS,
            partial(
                Groups.due_patterns,
                group_id=group_id,
                request=request,
                topics=topics,
                visibility=visibility,
            ),
        )
        try:
            for regex in patterns:
                for _ in topics.matches.catch_up(regex, topics.by_name, topics.epoch):
                    await asyncio.sleep(0)
                    has_waited = True
            if visibility is None or not seen_by or has_waited:
                continue
            unseen = topics.matches.of(seen_by, topics.by_name, topics.epoch) - seen.keys()
        except InvalidPattern:
            break  # the decision reports it
        for number, name in enumerate(unseen, 1):
            seen[name] = visibility.may_see(name)
            if number % SEEN_AT_ONCE == 0:
                await asyncio.sleep(0)
                has_waited = True
    if visibility is None or not seen:
        return visibility
    may_see = visibility.may_see
    return TopicVisibility(
        visibility.version, lambda name: seen[name] if name in seen else may_see(name)
    )
