"""What a partition has just appended, for its cursors."""

from collections.abc import Sequence

from penstock.model.message import Message


class Fresh:
    """A batch just appended, still as messages: a cursor that is caught up takes them from here
    instead of decoding what was encoded a moment ago."""

    __slots__ = ("base_offset", "messages", "next_offset", "now_ms", "previous_end")

    def __init__(
        self,
        previous_end: int,
        base_offset: int,
        next_offset: int,
        now_ms: int,
        messages: Sequence[Message],
    ) -> None:
        self.previous_end = previous_end  # between it and base_offset stand only events
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.now_ms = now_ms
        self.messages = messages
