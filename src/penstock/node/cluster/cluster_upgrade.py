"""Raising the feature level of a cluster by the admin API, when every node runs the new version and
no return to the old one is planned.

Whether all nodes support the level is checked twice: here, to refuse with the reasons, and by the
manager, after nodes that do not support it can no longer register (``manager/in_cluster.py``). A
dead node counts as not supporting it: it could not return.
"""

import asyncio
from collections.abc import Mapping, Sequence

from penstock.frontend.admin.ports import LevelShown, Upgrade
from penstock.membership.cluster_level import ClusterLevel
from penstock.metadata.cluster_entries import LEVEL_KEY, LevelEntry, NodeEntry, encode_entry
from penstock.metadata.store import Store
from penstock.model.errors import Conflict, InvalidRequest, VersionConflict

WAIT_SECONDS = 10.0  # for the manager to raise the level
NAMED_MAX = 10  # nodes named as obstacles


def level_shown(level: ClusterLevel, nodes: Mapping[int, NodeEntry]) -> LevelShown:
    entry = level.entry
    return LevelShown(entry.level, entry.wanted or None, latest_of(level, nodes))


def latest_of(level: ClusterLevel, nodes: Mapping[int, NodeEntry]) -> int:
    """Return the highest level that all nodes support."""
    spoken = min((entry.levels.highest for entry in nodes.values()), default=level.in_force)
    return max(level.in_force, spoken)


async def upgrade(
    store: Store,
    level: ClusterLevel,
    to: int | None,
    *,
    is_dry_run: bool,
    nodes: Mapping[int, NodeEntry],
    away: Sequence[int],
) -> Upgrade:
    """``away``: dead nodes with partitions. Raises InvalidRequest, Conflict."""
    await level.refresh()
    entry, version = level.entry, level.version
    wanted = latest_of(level, nodes) if to is None else to
    if wanted < entry.level:
        raise InvalidRequest(
            f"The cluster is at feature level {entry.level}; a level is never lowered."
        )
    obstacles = [] if wanted == entry.level else _obstacles(wanted, nodes, away)
    if is_dry_run or wanted == entry.level:
        return Upgrade(entry.level, wanted, wanted == entry.level, is_dry_run, obstacles)
    if obstacles:
        raise Conflict(f"The feature level cannot be raised to {wanted}: {'; '.join(obstacles)}.")
    request = encode_entry(LevelEntry(entry.level, wanted))
    try:
        requested_at = await store.put(LEVEL_KEY, request, if_version=version)
    except VersionConflict:
        raise Conflict("The feature level was changed by another request; retry.") from None
    is_done = await _wait(level, wanted, requested_at)
    return Upgrade(entry.level, wanted, is_done, is_dry_run, obstacles)


async def _wait(level: ClusterLevel, wanted: int, requested_at: int) -> bool:
    """Return whether the level is in force. Raises Conflict if the request was removed."""
    changed = asyncio.Event()
    end = level.on_change(changed.set)
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while level.in_force < wanted:
                if level.version > requested_at and not level.entry.wanted:
                    raise Conflict(
                        "The feature level was not raised: a node that does not support it has"
                        " registered."
                    )
                changed.clear()
                await changed.wait()
    except TimeoutError:
        return False
    finally:
        end()
    return True


def _obstacles(wanted: int, nodes: Mapping[int, NodeEntry], away: Sequence[int]) -> Sequence[str]:
    found = [
        f"node {node} ({entry.name}) has version {entry.version or '?'} and supports {entry.levels}"
        for node, entry in sorted(nodes.items())
        if wanted not in entry.levels
    ]
    found += [
        f"node {node} is dead and has partitions: start it, or decommission it" for node in away
    ]
    if len(found) > NAMED_MAX:
        found[NAMED_MAX:] = [f"and {len(found) - NAMED_MAX} more nodes"]
    return found
