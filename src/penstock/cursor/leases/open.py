"""Creation of lease cursors: empty, to be filled by replay, or from a snapshot."""

from penstock.cursor.leases.fifo import FifoCursor
from penstock.cursor.leases.lease import LeaseCursor
from penstock.cursor.leases.parts import decode_snapshot
from penstock.cursor.leases.standard import StandardCursor


def open_cursor(*, is_fifo: bool) -> LeaseCursor:
    return FifoCursor() if is_fifo else StandardCursor()


def restore_cursor(data: bytes, *, now_ms: int, elapsed_ms: int) -> LeaseCursor:
    """Return the cursor as it was ``elapsed_ms`` ago. Apply the log's events after the snapshot,
    then hydrate. Raises Damaged: then replay the whole log instead."""
    state = decode_snapshot(data)
    cursor = open_cursor(is_fifo=state.is_fifo)
    cursor.load(state, now_ms=now_ms, elapsed_ms=elapsed_ms)
    return cursor
