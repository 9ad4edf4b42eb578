"""A slice of a file, used instead of its bytes so that the kernel can send it without a copy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


class OpenFile(Protocol):
    """A file that stays open as long as there is a reference to it, even if it is deleted."""

    @property
    def fd(self) -> int: ...

    def pread(self, count: int, position: int) -> bytes: ...


@dataclass(slots=True, eq=False)
class FileSlice:
    file: OpenFile
    position: int
    size: int

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        data = self.file.pread(self.size, self.position)
        if len(data) < self.size:
            raise OSError(
                f"the slice has {self.size} bytes, but the file has only {len(data)} left"
            )
        return data


Piece: TypeAlias = bytes | memoryview | FileSlice


def in_memory(pieces: Sequence[Piece]) -> Sequence[bytes | memoryview]:
    return [piece.read() if isinstance(piece, FileSlice) else piece for piece in pieces]
