"""Computes a Merkle tree over a sequence of hashes, without keeping the hashes.

    leaf(x)    = SHA-256( 00 ‖ x )
    node(l, r) = SHA-256( 01 ‖ l ‖ r )

The tree over n leaves splits at the largest power of two below n, as in RFC 6962: the root over the
first leaves never depends on later leaves. The prefixes 00 and 01 prevent a leaf from being
presented as a node. ``Merkle`` holds one hash for each bit that is set in the number of leaves."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

EMPTY_ROOT: Final = sha256(b"").digest()


class Merkle:
    def __init__(self) -> None:
        self._peaks: list[tuple[int, bytes]] = []  # (height, root) of perfect trees, highest first
        self.count = 0

    def add(self, item: bytes) -> None:
        height, root = 0, leaf(item)
        while self._peaks and self._peaks[-1][0] == height:
            root = node(self._peaks.pop()[1], root)
            height += 1
        self._peaks.append((height, root))
        self.count += 1

    def root(self) -> bytes:
        """Return the root of all hashes added so far; more may be added afterwards."""
        if not self._peaks:
            return EMPTY_ROOT
        found = self._peaks[-1][1]
        for _, peak in reversed(self._peaks[:-1]):
            found = node(peak, found)
        return found


def leaf(item: bytes) -> bytes:
    return sha256(b"\x00" + item).digest()


def node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


def root_of(items: Iterable[bytes]) -> bytes:
    tree = Merkle()
    for item in items:
        tree.add(item)
    return tree.root()


def proof_of(items: Sequence[bytes], index: int) -> list[bytes]:
    """Return the sibling hashes, from the leaf upwards, that prove that a leaf is in the tree."""
    assert 0 <= index < len(items), "leaf index out of range"
    if len(items) == 1:
        return []
    split = _split(len(items))
    if index < split:
        return [*proof_of(items[:split], index), root_of(items[split:])]
    return [*proof_of(items[split:], index - split), root_of(items[:split])]


def is_under(root: bytes, item: bytes, *, index: int, count: int, proof: Sequence[bytes]) -> bool:
    """Return whether ``proof`` shows that ``item`` is the leaf at ``index`` under ``root``."""
    if not 0 <= index < count:
        return False
    sides: list[bool] = []  # from the root down: whether the leaf is on the left
    while count > 1:
        split = _split(count)
        sides.append(index < split)
        index, count = (index, split) if index < split else (index - split, count - split)
    if len(sides) != len(proof):
        return False
    found = leaf(item)
    for is_left, other in zip(reversed(sides), proof, strict=True):
        found = node(found, other) if is_left else node(other, found)
    return found == root


def _split(count: int) -> int:
    return 1 << ((count - 1).bit_length() - 1)
