"""Distribution of entries over members: consistent hashing with virtual nodes. Pure.

Keys and members have positions ("places") on a circle of 2^64. A key belongs to the next member
clockwise, so a member that joins or leaves affects only the keys between its places and the places
before them: about one in n, and no key moves between two members that stay.

A member has many places, so that the gaps between them even out: 128 virtual nodes of eight places
each (one hash yields eight). The standard deviation of a member's part is about one over the square
root of their number, 3 % here; with 128 places it would be 9 %, and one member in thirty would be
off by a fifth. A member's weight scales its virtual nodes.

Places depend only on BLAKE2b and ids: every node and every version has the same ring, in whatever
order it learned of the members. Changing anything here moves keys; two nodes that disagree notice
it by the ``fingerprint``.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

VIRTUAL_NODES: Final = 128  # of a member with weight 1
PLACES_PER_VIRTUAL_NODE: Final = 8
WEIGHT_MAX: Final = 64.0
MEMBERS_MAX: Final = 1_024  # some eight million places

_PLACES = struct.Struct(f">{PLACES_PER_VIRTUAL_NODE}Q")
_PLACE = struct.Struct(">Q")


class Member(msgspec.Struct, frozen=True, order=True):
    node_id: str
    weight: float = 1.0


def place_of(key: str) -> int:
    """Return the place of a key on the circle."""
    (place,) = _PLACE.unpack(blake2b(key.encode(), digest_size=_PLACE.size).digest())
    return int(place)


class Ring:
    """An immutable ring of at least one member."""

    __slots__ = ("_owners", "_places", "fingerprint", "members")

    def __init__(self, members: Iterable[Member], *, virtual_nodes: int = VIRTUAL_NODES) -> None:
        self.members: Sequence[Member] = tuple(sorted(members))
        ids = [member.node_id for member in self.members]
        assert 0 < len(ids) <= MEMBERS_MAX, "the ring has no members, or too many"
        assert len(set(ids)) == len(ids), "a member is in the ring twice"
        found: list[tuple[int, str]] = []
        for member in self.members:
            assert 0.0 < member.weight <= WEIGHT_MAX, "invalid weight of a member"
            count = max(1, round(virtual_nodes * member.weight))
            found += ((place, member.node_id) for place in _places_of(member.node_id, count))
        found.sort()  # two members at one place: ordered by id, the same on every node
        self._places = [place for place, _ in found]
        self._owners = [node_id for _, node_id in found]
        described = repr((virtual_nodes, [(one.node_id, one.weight) for one in self.members]))
        self.fingerprint = blake2b(described.encode(), digest_size=8).hexdigest()

    def owner(self, key: str) -> str:
        return self.owner_at(place_of(key))

    def owner_at(self, place: int) -> str:
        at = bisect_right(self._places, place)
        return self._owners[at if at < len(self._owners) else 0]

    def owners(self, key: str, count: int) -> Sequence[str]:
        """Return the owner and the members after it, each once, at most ``count``."""
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
