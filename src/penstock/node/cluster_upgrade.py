"""Raising the feature level of a cluster, as the admin API has it: an operator's step, taken when
every node runs the new version and nobody wants to go back to the old one.

Whether all nodes speak the level is looked at twice: here, to refuse in words, and by whoever
manages, once nobody can register any more who does not (``manager/finalizing.py``). A node that is
away counts as one that does not: it could not come back.
"""

import asyncio
from collections.abc import Mapping, Sequence

from penstock.frontend.admin.cluster_port import LevelShown, Upgrade
from penstock.metadata.cluster_entries import LEVEL_KEY, LevelEntry, NodeEntry, encode_entry
from penstock.metadata.cluster_level import ClusterLevel
from penstock.metadata.store import Store
from penstock.model.errors import Conflict, InvalidRequest, VersionConflict

WAIT_SECONDS = 10.0  # for whoever manages to see to it
NAMED_MAX = 10  # of the nodes that are in the way


def level_shown(level: ClusterLevel, nodes: Mapping[int, NodeEntry]) -> LevelShown:
    entry = level.entry
    return LevelShown(entry.level, entry.wanted or None, latest_of(level, nodes))


def latest_of(level: ClusterLevel, nodes: Mapping[int, NodeEntry]) -> int:
    """The highest that all nodes speak."""
    spoken = min((entry.levels.highest for entry in nodes.values()), default=level.in_force)
    return max(level.in_force, spoken)


class ClusterUpgrade:
    def __init__(self, store: Store, level: ClusterLevel) -> None:
        self._store = store
        self._level = level

    async def upgrade(
        self,
        to: int | None,
        *,
        is_dry_run: bool,
        nodes: Mapping[int, NodeEntry],
        away: Sequence[int],
    ) -> Upgrade:
        """``nodes`` are alive, ``away`` have partitions and are not. Raises InvalidRequest,
        Conflict."""
        await self._level.refresh()
        entry, version = self._level.entry, self._level.version
        wanted = latest_of(self._level, nodes) if to is None else to
        if wanted < entry.level:
            raise InvalidRequest(
                f"The cluster is at feature level {entry.level}, and a level is never lowered."
            )
        obstacles = [] if wanted == entry.level else _obstacles(wanted, nodes, away)
        if is_dry_run or wanted == entry.level:
            return Upgrade(entry.level, wanted, wanted == entry.level, is_dry_run, obstacles)
        if obstacles:
            raise Conflict(
                f"The feature level cannot be raised to {wanted}: {'; '.join(obstacles)}."
            )
        wish = encode_entry(LevelEntry(entry.level, wanted))
        try:
            wished_at = await self._store.put(LEVEL_KEY, wish, if_version=version)
        except VersionConflict:
            raise Conflict("The feature level has just been changed by somebody else.") from None
        is_done = await self._wait(wanted, wished_at)
        return Upgrade(entry.level, wanted, is_done, is_dry_run, obstacles)

    async def _wait(self, wanted: int, wished_at: int) -> bool:
        """Whether it is in force. Raises Conflict when the wish was taken back."""
        changed = asyncio.Event()
        end = self._level.on_change(changed.set)
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while self._level.in_force < wanted:
                    if self._level.version > wished_at and not self._level.entry.wanted:
                        raise Conflict(
                            "The feature level was not raised: a node has come that does not speak"
                            " it."
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
        f"node {node} ({entry.name}) runs version {entry.version or '?'} and speaks {entry.levels}"
        for node, entry in sorted(nodes.items())
        if wanted not in entry.levels
    ]
    found += [
        f"node {node} is away and has partitions: start it, or decommission it" for node in away
    ]
    if len(found) > NAMED_MAX:
        found[NAMED_MAX:] = [f"and {len(found) - NAMED_MAX} nodes more"]
    return found
