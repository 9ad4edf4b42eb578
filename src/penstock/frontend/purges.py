"""A queue may be purged once a minute. The broker refuses too; asking here saves it the call and
keeps the rule when a purge has ended but its minute has not."""

from penstock.model.errors import PurgeInProgress
from penstock.model.limits import PURGE_INTERVAL_MS

PURGES_MAX = 10_000  # queues remembered; the oldest goes first, and the broker still refuses


class PurgeGuard:
    __slots__ = ("_purged_at_ms",)

    def __init__(self) -> None:
        # Insertion order is time order: entries are re-inserted when a queue is purged again.
        self._purged_at_ms: dict[str, int] = {}

    def enter(self, topic_id: str, *, name: str, now_ms: int) -> None:
        """Start a purge's minute, or raise PurgeInProgress. ``now_ms`` is monotonic."""
        purged_at_ms = self._purged_at_ms.get(topic_id)
        if purged_at_ms is not None and now_ms - purged_at_ms < PURGE_INTERVAL_MS:
            raise PurgeInProgress(
                f"Only one PurgeQueue operation on {name} is allowed every 60 seconds."
            )
        self._purged_at_ms.pop(topic_id, None)
        self._drop_ended(now_ms)
        self._purged_at_ms[topic_id] = now_ms

    def leave(self, topic_id: str) -> None:
        """The purge did not happen: its minute does not count."""
        self._purged_at_ms.pop(topic_id, None)

    def clear(self) -> None:
        self._purged_at_ms.clear()

    def _drop_ended(self, now_ms: int) -> None:
        entries = self._purged_at_ms
        while entries:
            topic_id, purged_at_ms = next(iter(entries.items()))
            if now_ms - purged_at_ms < PURGE_INTERVAL_MS and len(entries) < PURGES_MAX:
                return
            del entries[topic_id]
