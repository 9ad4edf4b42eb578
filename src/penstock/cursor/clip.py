"""Clipping of events to a log whose beginning was dropped.

The rest of the log may contain events about dropped records, for example a lease of records before
and after the cut. A fold that begins at the cut leaves the dropped records out.
"""

import msgspec

from penstock.cursor.events import AckEvent, Event, ExtendEvent, LeaseEvent


def clipped(event: Event, start: int) -> Event:
    """Return the event without the records below ``start``."""
    if isinstance(event, LeaseEvent):
        detail = event.detail
        if detail is not None:
            detail = msgspec.structs.replace(
                detail,
                skipped=_from(detail.skipped, start),
                held=_from(detail.held, start),
                expired=_from(detail.expired, start),
            )
        return msgspec.structs.replace(event, offsets=_from(event.offsets, start), detail=detail)
    if isinstance(event, AckEvent):
        return msgspec.structs.replace(event, offsets=_from(event.offsets, start))
    if isinstance(event, ExtendEvent):
        return ExtendEvent(tuple([each for each in event.leases if each[0] >= start]))
    return event


def _from(offsets: tuple[int, ...], start: int) -> tuple[int, ...]:
    return tuple([offset for offset in offsets if offset >= start])
