"""Who keeps which entry: consistent hashing with virtual nodes. Pure.

Keys and members stand on one circle of 2^64 places. A key belongs to the first member clockwise of
it, so a member that comes or goes concerns only the keys between its own places and the places
before them: about one in n, and none moves between two members that stay.

A member stands at many places, so that the stretches between them even out: 128 virtual nodes of
eight places each (one hash gives eight). The spread of a share is about one over the square root
of their number, 3 % here; with 128 places alone it would be 9 %, and one member in thirty would be
a fifth off. A member's weight scales its virtual nodes.

Places come from BLAKE2b and from ids alone: every node and every version has the same ring,
in whatever order it learned of the members. Changing anything here moves keys; two nodes that
disagree notice by the ``fingerprint``.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

VIRTUAL_NODES: Final = 128  # of a member of weight 1
PLACES_PER_VIRTUAL_NODE: Final = 8
WEIGHT_MAX: Final = 64.0
MEMBERS_MAX: Final = 1_024  # some eight million places

_PLACES = struct.Struct(f">{PLACES_PER_VIRTUAL_NODE}Q")
_PLACE = struct.Struct(">Q")


class Member(msgspec.Struct, frozen=True, order=True):
    node_id: str
    weight: float = 1.0


def place_of(key: str) -> int:
    """Where a key stands on the circle."""
    (place,) = _PLACE.unpack(blake2b(key.encode(), digest_size=_PLACE.size).digest())
    return int(place)


class Ring:
    """Of at least one member. Never changes: other members make another ring."""

    __slots__ = ("_owners", "_places", "fingerprint", "members")

    def __init__(self, members: Iterable[Member], *, virtual_nodes: int = VIRTUAL_NODES) -> None:
        self.members: Sequence[Member] = tuple(sorted(members))
        ids = [member.node_id for member in self.members]
        assert 0 < len(ids) <= MEMBERS_MAX, "a ring has members, and not too many"
        assert len(set(ids)) == len(ids), "a member is in the ring once"
        found: list[tuple[int, str]] = []
        for member in self.members:
            assert 0.0 < member.weight <= WEIGHT_MAX, "a weight is positive"
            count = max(1, round(virtual_nodes * member.weight))
            found += ((place, member.node_id) for place in _places_of(member.node_id, count))
        found.sort()  # two members at one place: the id decides, the same everywhere
        self._places = [place for place, _ in found]
        self._owners = [node_id for _, node_id in found]
        told = repr((virtual_nodes, [(one.node_id, one.weight) for one in self.members]))
        self.fingerprint = blake2b(told.encode(), digest_size=8).hexdigest()

    def owner(self, key: str) -> str:
        return self.owner_at(place_of(key))

    def owner_at(self, place: int) -> str:
        at = bisect_right(self._places, place)
        return self._owners[at if at < len(self._owners) else 0]

    def owners(self, key: str, count: int) -> Sequence[str]:
        """The owner and those that would follow it, each once; all members if there are fewer."""
        wanted = min(count, len(self.members))
        at = bisect_right(self._places, place_of(key))
        owners = self._owners
        found: list[str] = []
        for step in range(len(owners)):
            if len(found) == wanted:
                break
            node_id = owners[(at + step) % len(owners)]
            if node_id not in found:
                found.append(node_id)
        return found


def _places_of(node_id: str, count: int) -> Iterable[int]:
    for number in range(count):
        digest = blake2b(f"{node_id}#{number}".encode(), digest_size=_PLACES.size).digest()
        yield from _PLACES.unpack(digest)
