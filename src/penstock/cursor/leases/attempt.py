"""Receive attempts on a FIFO queue: a client that lost a reply retries with the same attempt id and
gets the same records under the same lease, although their groups are locked.

The table is part of the fold (the lease event contains the id), so a new leader replies alike. Old
attempts are dropped by count only, at the same event on every replica; lookups check the age.
"""

from collections.abc import Iterable

import msgspec

from penstock.model.limits import ATTEMPT_IDS_MAX, ATTEMPT_WINDOW_MS


class Attempt(msgspec.Struct, frozen=True, gc=False):
    lease_seq: int
    offsets: tuple[int, ...]
    at_ms: int  # monotonic clock


class AttemptTable:
    def __init__(self) -> None:
        self._attempts: dict[str, Attempt] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._attempts)

    def is_repeat(self, attempt_id: str, lease_seq: int) -> bool:
        """Return whether a lease event only restarts a lease: new leases have new numbers."""
        attempt = self._attempts.get(attempt_id)
        return attempt is not None and attempt.lease_seq == lease_seq

    def find(self, attempt_id: str, *, now_ms: int) -> Attempt | None:
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.at_ms + ATTEMPT_WINDOW_MS <= now_ms:
            return None
        return attempt

    def remember(self, attempt_id: str, attempt: Attempt) -> None:
        self._attempts.pop(attempt_id, None)  # move a newer attempt to the end
        self._attempts[attempt_id] = attempt
        if len(self._attempts) > ATTEMPT_IDS_MAX:
            del self._attempts[next(iter(self._attempts))]

    def rows(self, *, now_ms: int) -> list[tuple[str, int, tuple[int, ...], int]]:
        return [(i, a.lease_seq, a.offsets, now_ms - a.at_ms) for i, a in self._attempts.items()]

    def load(
        self,
        rows: Iterable[tuple[str, int, tuple[int, ...], int]],
        *,
        now_ms: int,
        elapsed_ms: int,
    ) -> None:
        self._attempts = {
            attempt_id: Attempt(lease_seq, offsets, now_ms - age_ms - elapsed_ms)
            for attempt_id, lease_seq, offsets, age_ms in rows
        }
