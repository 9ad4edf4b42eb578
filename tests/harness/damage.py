"""What a disk does to a file that nobody wrote to."""

from pathlib import Path


def flip_bit(path: Path, position: int, *, bit: int = 3) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))
