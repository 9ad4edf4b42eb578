"""Random bytes for message ids, drawn from the kernel a page at a time: a system call for each
message would cost as much as encoding it."""

import os

PAGE_BYTES = 4_096


class Entropy:
    __slots__ = ("_page", "_position")

    def __init__(self) -> None:
        self._page = b""
        self._position = 0

    def __call__(self, count: int) -> bytes:
        start = self._position
        end = start + count
        if end > len(self._page):
            self._page = os.urandom(max(PAGE_BYTES, count))
            start, end = 0, count
        self._position = end
        return self._page[start:end]
