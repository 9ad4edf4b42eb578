"""Requests to nodes for the ends of their logs, for partitions without a known intact replica (R6).

A reply is valid while the node is not restarted and the row does not change; then the node is
queried again. One request per node is in progress at a time, for many partitions at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from penstock.manager.cluster_state import ClusterState
from penstock.manager.decision_writer import cancelled
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.errors import PenstockError
from penstock.replication.election import Standing
from penstock.replication.row import View

KEYS_PER_QUERY_MAX: Final = 1_000

AskStandings = Callable[[int, Sequence[PartitionKey]], Awaitable[Mapping[PartitionKey, Standing]]]
OnReply = Callable[[Sequence[PartitionKey], bool], None]

log = logging.getLogger(__name__)


class _Report(NamedTuple):
    incarnation: int
    version: int  # of the row
    standing: Standing


class LogEndQueries:
    def __init__(
        self, state: ClusterState, ask: AskStandings, *, on_reply: OnReply, ask_ms: int
    ) -> None:
        """``on_reply`` gets partitions to check again, and True to check them at once."""
        self._state = state
        self._ask = ask
        self._on_reply = on_reply
        self._ask_seconds = ask_ms / 1_000
        self._reports: dict[PartitionKey, dict[int, _Report]] = {}
        self._wanted: dict[int, dict[PartitionKey, None]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def standings(self, key: PartitionKey, view: View) -> Mapping[int, Standing]:
        """Return the replies for this partition that are still valid."""
        return {
            node: report.standing
            for node, report in self._reports.get(key, {}).items()
            if (report.incarnation, report.version)
            == (self._state.incarnations.get(node), view.version)
        }

    def forget(self, key: PartitionKey) -> None:
        self._reports.pop(key, None)

    def want(self, key: PartitionKey, nodes: Sequence[int]) -> None:
        for node in nodes:
            self._wanted.setdefault(node, {})[key] = None
            if node not in self._tasks:
                task = asyncio.create_task(self._ask_all(node), name=f"standings of node {node}")
                self._tasks[node] = task

    async def stop(self) -> None:
        await cancelled(self._tasks.values())

    async def _ask_all(self, node: int) -> None:
        try:
            await asyncio.sleep(0)  # include all partitions requested in this turn of the loop
            while wanted := self._wanted.pop(node, None):
                keys = list(islice(wanted, KEYS_PER_QUERY_MAX))
                if len(wanted) > len(keys):
                    self._wanted[node] = {key: None for key in wanted if key not in set(keys)}
                await self._ask_some(node, keys)
        finally:
            del self._tasks[node]

    async def _ask_some(self, node: int, keys: Sequence[PartitionKey]) -> None:
        # Read before the request: a reply from a later incarnation is not valid for this one.
        incarnation = self._state.incarnations.get(node)
        versions = {key: view.version for key in keys if (view := self._state.rows.get(key))}
        if incarnation is None:
            return  # when the node returns, its partitions become due again
        try:
            async with asyncio.timeout(self._ask_seconds):
                replies = await self._ask(node, list(versions))
        except (PenstockError, TimeoutError) as error:
            log.warning(
                "node did not report its log ends",
                extra={"node": node, "partitions": len(versions), "reason": str(error)},
            )
            self._on_reply(keys, False)
            return
        for key, version in versions.items():
            if key in replies:
                report = _Report(incarnation, version, replies[key])
                self._reports.setdefault(key, {})[node] = report
        self._on_reply([key for key in keys if key in replies], True)
        self._on_reply([key for key in keys if key not in replies], False)
