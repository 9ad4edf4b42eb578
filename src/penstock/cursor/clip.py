"""Events as they concern a log whose beginning was dropped.

What is left of the log may still hold events that speak of what stood there: a lease of records on
both sides of the cut, say. A fold that begins at the cut leaves those records out.
"""

import msgspec

from penstock.cursor.events import AckEvent, Event, ExtendEvent, LeaseEvent


def clipped(event: Event, start: int) -> Event:
    """What an event says of records from ``start`` on."""
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
