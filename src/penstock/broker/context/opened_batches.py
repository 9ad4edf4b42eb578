"""A cache of opened batches with many records, for all queues of a node.

A record that is leased again is looked up in its batch. A large batch must be read, decompressed
and indexed for that, so the batches used last are kept, up to 64 MiB in total.
"""

from collections import OrderedDict
from typing import Final

from penstock.model.limits import OPENED_BYTES_MAX
from penstock.record.opened import OpenedBatch

BATCHES_MAX: Final = 64


class OpenedBatches:
    def __init__(self, bytes_max: int = OPENED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._size_bytes = 0
        # By owner (a record reader) and base offset; the last used is at the end.
        self.kept: OrderedDict[tuple[object, int], OpenedBatch] = OrderedDict()

    def find(self, owner: object, offset: int) -> OpenedBatch | None:
        """Return the batch of ``owner`` that covers an offset."""
        for key, opened in self.kept.items():
            header = opened.header
            if key[0] is owner and header.base_offset <= offset < header.next_offset:
                self.kept.move_to_end(key)
                return opened
        return None

    def add(self, owner: object, opened: OpenedBatch) -> None:
        """Keep a batch, and drop the oldest ones above the bound. One batch is always kept."""
        key = (owner, opened.header.base_offset)
        self._drop(key)
        self.kept[key] = opened
        self._size_bytes += opened.size_bytes
        while len(self.kept) > 1 and (
            self._size_bytes > self._bytes_max or len(self.kept) > BATCHES_MAX
        ):
            self._drop(next(iter(self.kept)))

    def forget(self, owner: object) -> None:
        for key in [key for key in self.kept if key[0] is owner]:
            self._drop(key)

    def _drop(self, key: tuple[object, int]) -> None:
        opened = self.kept.pop(key, None)
        if opened is not None:
            self._size_bytes -= opened.size_bytes
