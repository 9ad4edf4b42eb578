"""Assigns the tasks of large streams groups in a thread, because a decision of a coordinator cannot
be interrupted. Members get the tasks with their next heartbeat, as in Apache Kafka."""

import asyncio
import logging

from penstock.broker.coordinator import Coordinator
from penstock.cursor.group.streams_assignment import Work, work_out

log_ = logging.getLogger(__name__)


class TaskAssignments:
    def __init__(self) -> None:
        self._jobs: dict[str, asyncio.Task[None]] = {}  # by group
        self._turn = asyncio.Lock()  # one thread at a time: threads share the interpreter

    def begin(self, coordinator: Coordinator, group_id: str) -> None:
        """Begin the assignment that a group needs, unless there is none or it is under way."""
        if group_id in self._jobs:
            return
        work = coordinator.peek(None, lambda groups: groups.due_work(group_id))
        if work is not None:
            job = asyncio.create_task(self._assign(coordinator, work), name=f"assign {group_id}")
            self._jobs[group_id] = job
            job.add_done_callback(lambda job: self._ended(group_id, job))

    async def _assign(self, coordinator: Coordinator, work: Work) -> None:
        async with self._turn:
            assignment = await asyncio.to_thread(work_out, work)
        coordinator.note(lambda groups: groups.take_assignment(assignment))

    def _ended(self, group_id: str, job: asyncio.Task[None]) -> None:
        del self._jobs[group_id]
        if not job.cancelled() and (error := job.exception()) is not None:
            # The next heartbeat begins the assignment anew.
            log_.error("task assignment failed", exc_info=error, extra={"group": group_id})

    async def stop(self) -> None:
        jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
