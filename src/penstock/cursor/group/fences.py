"""The epoch of the last marker of each producer that has committed offsets in a transaction here.

A commit that arrives after the marker of its transaction would wait for ever for another marker.
The remembered epoch lets the coordinator reject that commit (if epochs rise with each transaction,
as they do for current clients).
"""

from penstock.cursor.group.decision import Draft
from penstock.cursor.group.records import CODEC, FenceKey, FenceValue
from penstock.cursor.group.settings import FENCE_MS, FENCES_MAX


class Fences:
    def __init__(self) -> None:
        self._fences: dict[int, FenceValue] = {}  # oldest first

    def apply(self, key: FenceKey, value: FenceValue | None) -> None:
        self._fences.pop(key.producer_id, None)
        if value is not None:
            self._fences[key.producer_id] = value

    def _put(self, draft: Draft, producer_id: int, value: FenceValue | None) -> None:
        key = FenceKey(producer_id)
        draft.rows.append(CODEC.encode(key, value))
        self.apply(key, value)

    def epoch_of(self, producer_id: int) -> int:
        value = self._fences.get(producer_id)
        return -1 if value is None else value.producer_epoch

    def raise_to(self, producer_id: int, epoch: int, draft: Draft, *, wall_ms: int) -> None:
        self._put(draft, producer_id, FenceValue(epoch, wall_ms))
        while len(self._fences) > FENCES_MAX:
            self._put(draft, next(iter(self._fences)), None)

    def expire(self, draft: Draft, *, wall_ms: int) -> None:
        while self._fences:
            producer_id, value = next(iter(self._fences.items()))
            if value.fenced_at_ms + FENCE_MS > wall_ms:
                return
            self._put(draft, producer_id, None)

    def view(self) -> dict[int, FenceValue]:
        return dict(sorted(self._fences.items()))
