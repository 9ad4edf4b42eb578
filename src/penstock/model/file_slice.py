"""Bytes that are still in a file: what a reader who only passes them on may be given instead of the
bytes themselves. Whoever has the socket lets the kernel move them, or reads them after all."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias


class OpenFile(Protocol):
    """Open as long as anybody refers to it, whatever becomes of its name meanwhile."""

    @property
    def fd(self) -> int: ...

    def pread(self, count: int, position: int) -> bytes: ...


class FileSlice:
    __slots__ = ("file", "position", "size")

    def __init__(self, file: OpenFile, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        data = self.file.pread(self.size, self.position)
        if len(data) < self.size:
            raise OSError(f"{self.size} bytes were here, {len(data)} are left")
        return data


Piece: TypeAlias = bytes | memoryview | FileSlice


def in_memory(pieces: Sequence[Piece]) -> Sequence[bytes | memoryview]:
    """For those who have to look at the bytes, or at a socket that takes nothing else."""
    return [piece.read() if isinstance(piece, FileSlice) else piece for piece in pieces]
