"""How far a streaming read has come, as Spark keeps it in its checkpoint.

    {"v": 1, "topics": {"orders": {"0": 1204, "1": 998}}, "ids": {"orders": "5d0c…"}}

The number is that of the next record. The id tells a topic from another that was made under the
same name; a topic that is gone is not in there any more.

**Changing it.** Fields may be added, and a reader takes a missing one for empty. Another meaning is
another ``v``, which a reader that does not know it refuses: going on from a wrong place is worse.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from penstock.net.kafka_client import Place

VERSION: Final = 1


class OffsetUnreadable(ValueError):
    """The checkpoint holds something else than what this source wrote."""


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
            raise OffsetUnreadable(
                f"an offset of version {VERSION} is expected, not {found!s:.200}"
            )
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
        """Whether a name means the same topic in both; unknown ids are not held against it."""
        mine, theirs = self.ids.get(topic, ""), other.ids.get(topic, "")
        return not mine or not theirs or mine == theirs
