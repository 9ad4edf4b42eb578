"""Matches the patterns of a consumer group before its coordinator decides, with pauses in between:
the decision itself cannot be interrupted."""

import asyncio
from collections.abc import Callable
from functools import partial

from penstock.broker.coordinator import Coordinator
from penstock.cursor.group.consumer import ConsumerHeartbeat, Topics
from penstock.cursor.group.groups import Groups
from penstock.cursor.group.pattern_syntax import InvalidPattern
from penstock.cursor.group.sight import Sight

SEEN_AT_ONCE = 32  # topics; each takes up to 50 µs to authorize
_NO_PATTERNS: tuple[frozenset[str], str] = (frozenset(), "")


async def match_patterns(
    coordinator: Coordinator,
    group_id: str,
    request: ConsumerHeartbeat,
    sight: Sight | None,
    *,
    topics_of: Callable[[], Topics],
) -> Sight | None:
    """Match the patterns of the group, and ask which topics the member may see. Each step takes
    about a millisecond. Returns when there is nothing left to do, with the same answers about
    topics in memory."""
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
                sight=sight,
            ),
        )
        try:
            for regex in patterns:
                for _ in topics.matches.catch_up(regex, topics.by_name, topics.epoch):
                    await asyncio.sleep(0)
                    has_waited = True
            if sight is None or not seen_by or has_waited:
                continue
            unseen = topics.matches.of(seen_by, topics.by_name, topics.epoch) - seen.keys()
        except InvalidPattern:
            break  # the decision says so
        for number, name in enumerate(unseen, 1):
            seen[name] = sight.may_see(name)
            if number % SEEN_AT_ONCE == 0:
                await asyncio.sleep(0)
                has_waited = True
    if sight is None or not seen:
        return sight
    ask = sight.may_see
    return Sight(sight.turn, lambda name: seen[name] if name in seen else ask(name))
