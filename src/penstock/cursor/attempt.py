"""Receive attempts on a FIFO queue: a client that lost the answer asks again with the same id and
gets the same records under the same lease, instead of finding their groups locked.

The table is part of the fold (the id travels in the lease event), so a new leader answers alike.
It forgets by count only, which every replica does at the same event; age is checked on lookup.
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
        """Whether a lease event only restarts a lease: new leases have new numbers."""
        attempt = self._attempts.get(attempt_id)
        return attempt is not None and attempt.lease_seq == lease_seq

    def find(self, attempt_id: str, *, now_ms: int) -> Attempt | None:
        attempt = self._attempts.get(attempt_id)
        if attempt is None or attempt.at_ms + ATTEMPT_WINDOW_MS <= now_ms:
            return None
        return attempt

    def remember(self, attempt_id: str, attempt: Attempt) -> None:
        self._attempts.pop(attempt_id, None)  # a newer attempt goes to the end of the line
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
