"""Assigns the tasks of large streams groups in a thread, because a coordinator's decision cannot be
interrupted. Members get the tasks with their next heartbeat, as in Apache Kafka."""

import asyncio
import logging

from penstock.broker.coordination.group_coordinator import GroupCoordinator
from penstock.cursor.groups.streams.task_assignor import AssignmentInput, compute_assignment

log_ = logging.getLogger(__name__)


class TaskAssignments:
    def __init__(self) -> None:
        self._jobs: dict[str, asyncio.Task[None]] = {}  # by group
        self._lock = asyncio.Lock()  # one thread at a time: threads share the interpreter

    def begin(self, coordinator: GroupCoordinator, group_id: str) -> None:
        """Begin the assignment that a group needs, if any, unless it is in progress."""
        if group_id in self._jobs:
            return
        pending = coordinator.peek(None, lambda groups: groups.pending_assignment(group_id))
        if pending is not None:
            job = asyncio.create_task(self._assign(coordinator, pending), name=f"assign {group_id}")
            self._jobs[group_id] = job
            job.add_done_callback(lambda job: self._ended(group_id, job))

    async def _assign(self, coordinator: GroupCoordinator, pending: AssignmentInput) -> None:
        async with self._lock:
            assignment = await asyncio.to_thread(compute_assignment, pending)
        coordinator.note(lambda groups, decision: groups.take_assignment(assignment, decision))

    def _ended(self, group_id: str, job: asyncio.Task[None]) -> None:
        del self._jobs[group_id]
        if not job.cancelled() and (error := job.exception()) is not None:
            # The next heartbeat begins the assignment again.
            log_.error("task assignment failed", exc_info=error, extra={"group": group_id})

    async def stop(self) -> None:
        jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
