"""Entries: records below the cursor's head that are not gone yet.

    READY ──lease──► LEASED ──deadline, release──► READY ──...──► gone (ack, expiry, trim)
    skipped while delayed: DELAYED ──due──► READY
    replayed without its contents: RESTORED ──hydrate──► READY or DELAYED

TAKEN exists only inside one decision, between choosing a record and applying the event.
Entries are msgspec structs outside the garbage collector: at 120,000 in flight a full collection
over ordinary objects would stop the partition for tens of milliseconds.
"""

import msgspec

READY = 0
LEASED = 1
DELAYED = 2
TAKEN = 3
RESTORED = 4

UNKNOWN = -1  # sent_at_ms of an entry whose record has not been read yet


class Entry(msgspec.Struct, gc=False):
    state: int
    group: str | None = None
    sent_at_ms: int = UNKNOWN  # what retention counts from
    attempts: int = 0
    lease_seq: int = 0
    until_ms: int = 0  # LEASED: the deadline, DELAYED: when due; monotonic clock
    leased_at_ms: int = 0  # monotonic clock; a lease can be extended to twelve hours after this
    first_leased_at_ms: int = 0  # wall clock
    is_changed: bool = False  # extended or released since it was leased
