"""Message deduplication: messages with the same id within five minutes are the same message.

The five minutes count from the append of the first message, even if it is acked meanwhile. The
table is rebuilt at each start from the last five minutes of the log. Keys are hashes of sixteen
bytes, so entries have a fixed size and clients cannot in practice cause a collision."""

import hashlib
from collections import deque

from penstock.model.errors import Throttled
from penstock.model.limits import DEDUP_ENTRIES_MAX, DEDUP_WINDOW_MS, SECOND_MS
from penstock.model.message import Message
from penstock.model.topic import DedupScope


def dedup_key(message: Message, scope: DedupScope) -> bytes | None:
    dedup_id = message.dedup_id
    if dedup_id is None:
        return None
    name = dedup_id.encode()
    if scope is DedupScope.GROUP and message.group is not None:
        # The length distinguishes ("ab", "c") from ("a", "bc").
        group = message.group.encode()
        name = len(group).to_bytes(4, "big") + group + name
    return hashlib.blake2b(name, digest_size=16).digest()


class DedupTable:
    def __init__(self, *, entries_max: int = DEDUP_ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        # key → offset, message id, append time
        self._found: dict[bytes, tuple[int, bytes, int]] = {}
        self._order: deque[tuple[int, bytes]] = deque()  # append time, key; oldest first

    def __len__(self) -> int:
        return len(self._found)

    def find(self, key: bytes, *, wall_ms: int) -> tuple[int, bytes] | None:
        """Return offset and id of the message with this key, or None if the key is unknown."""
        found = self._found.get(key)
        if found is None or found[2] + DEDUP_WINDOW_MS <= wall_ms:
            return None
        return found[:2]

    def check_room(self, count: int, *, wall_ms: int) -> None:
        """Raise Throttled if ``count`` more keys do not fit. Called before an append."""
        self._forget(wall_ms)
        if len(self._order) + count > self._entries_max:
            oldest_ms = self._order[0][0] if self._order else wall_ms
            raise Throttled(
                f"The queue accepts at most {self._entries_max} deduplication ids in 5 minutes.",
                retry_after_ms=max(SECOND_MS, oldest_ms + DEDUP_WINDOW_MS - wall_ms),
            )

    def remember(self, key: bytes, offset: int, message_id: bytes, appended_at_ms: int) -> None:
        self._forget(appended_at_ms)
        if key in self._found:
            return
        if len(self._order) >= self._entries_max:
            self.check_room(1, wall_ms=appended_at_ms)
        self._found[key] = (offset, message_id, appended_at_ms)
        self._order.append((appended_at_ms, key))

    def forget_below(self, offset: int) -> None:
        kept = [(at, key) for at, key in self._order if self._found[key][0] >= offset]
        self._order = deque(kept)
        self._found = {key: self._found[key] for _, key in kept}

    def _forget(self, wall_ms: int) -> None:
        order = self._order
        ended_ms = wall_ms - DEDUP_WINDOW_MS
        while order and order[0][0] <= ended_ms:
            appended_at_ms, key = order.popleft()
            found = self._found.get(key)
            if found is not None and found[2] == appended_at_ms:
                del self._found[key]
