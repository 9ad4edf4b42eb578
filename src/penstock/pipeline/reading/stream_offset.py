"""The offset of a streaming read, as Spark keeps it in its checkpoint.

    {"v": 1, "topics": {"orders": {"0": 1204, "1": 998}}, "ids": {"orders": "5d0c…"}}

Each number is the offset of the next record. The id distinguishes a topic from a later topic of the
same name; deleted topics are removed.

**Changes of the format.** Fields may be added; a reader treats a missing field as empty. A change
of meaning needs another ``v``; a reader rejects versions that it does not know, because continuing
at a wrong offset is worse."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from penstock.net.kafka_client.client import Place

VERSION: Final = 1


class OffsetUnreadable(ValueError):
    """The checkpoint contains an offset that this source did not write."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    at: Mapping[Place, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        topics: dict[str, dict[str, int]] = {}
        for place in sorted(self.at):
            topics.setdefault(place.topic, {})[str(place.partition)] = self.at[place]
        return {"v": VERSION, "topics": topics, "ids": dict(sorted(self.ids.items()))}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Raises OffsetUnreadable."""
        if not isinstance(found, Mapping) or found.get("v") != VERSION:
            raise OffsetUnreadable(f"expected an offset of version {VERSION}, not {found!s:.200}")
        try:
            at = {
                Place(topic, int(number)): int(offset)
                for topic, numbers in found["topics"].items()
                for number, offset in numbers.items()
            }
            return cls(at, {str(name): str(each) for name, each in found.get("ids", {}).items()})
        except (KeyError, TypeError, ValueError, AttributeError):
            raise OffsetUnreadable(f"not an offset of this source: {found!s:.200}") from None

    def same_topic(self, other: "StreamOffset", topic: str) -> bool:
        """Return whether a name is the same topic in both offsets; unknown ids match any id."""
        mine, theirs = self.ids.get(topic, ""), other.ids.get(topic, "")
        return not mine or not theirs or mine == theirs
