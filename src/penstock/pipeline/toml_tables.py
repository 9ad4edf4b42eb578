"""Reads TOML files of repeated tables, such as ``[[rule]]``. Errors name the table; the caller
chooses the type of the exception."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

FILE_BYTES_MAX: Final = 1_048_576
TABLES_MAX: Final = 10_000


def read_text(path: str | Path, error: type[Exception]) -> str:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise error(f"{path} is larger than {FILE_BYTES_MAX} bytes")
        return raw.decode()
    except OSError as trouble:
        raise error(f"cannot read {path}: {trouble.strerror}") from None
    except UnicodeDecodeError:
        raise error(f"{path} is not UTF-8") from None


def parse_toml(text: str, error: type[Exception]) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as trouble:
        raise error(f"the file is not valid TOML: {trouble}") from None


def tables_of(
    text: str, names: Sequence[str], error: type[Exception]
) -> dict[str, list[dict[str, Any]]]:
    data = parse_toml(text, error)
    for name, tables in data.items():
        is_list = isinstance(tables, list) and all(isinstance(each, dict) for each in tables)
        if name not in names or not is_list or len(tables) > TABLES_MAX:
            wanted = ", ".join(f"[[{each}]]" for each in names)
            raise error(f"unknown entry {name}; only tables {wanted} are allowed")
    return {name: list(data.get(name, [])) for name in names}


class TomlTable:
    """A TOML table. Methods remove the keys they read, so ``finish`` finds unknown keys."""

    def __init__(self, where: str, table: dict[str, Any], error: type[Exception]) -> None:
        self._where = where
        self._table = table
        self._error = error

    def wrong(self, reason: str) -> Exception:
        return self._error(f"{self._where}: {reason}")

    def names(self) -> list[str]:
        return list(self._table)

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def text(self, name: str, default: str | None = None) -> str:
        value = self._table.pop(name, default)
        if not isinstance(value, str) or not 1 <= len(value) <= 1_000:
            raise self.wrong(f"{name} is missing" if value is None else f"{name} must be a string")
        return value

    def choice(self, name: str, kind: Any, default: Any = None) -> Any:
        value = self._table.pop(name, default)
        try:
            return kind(value)
        except ValueError:
            raise self.wrong(f"{name} must be one of {', '.join(kind)}, not '{value}'") from None

    def whole(self, name: str, default: int | None = None) -> int:
        value = self._table.pop(name, default)
        if value is None:
            raise self.wrong(f"{name} is missing")
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
            raise self.wrong(f"{name} must be a whole number, not {value!r}")
        return value

    def number(self, name: str) -> float | None:
        value = self._table.pop(name, None)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or value != value:
            raise self.wrong(f"{name} must be a number, not {value!r}")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._table.pop(name, default)
        if not isinstance(value, bool):
            raise self.wrong(f"{name} must be true or false, not {value!r}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._table.pop(name, [])
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            raise self.wrong(f"{name} must be a list of names")
        return tuple(value)

    def table(self, name: str) -> dict[str, Any]:
        value = self._table.pop(name, {})
        if not isinstance(value, dict):
            raise self.wrong(f"{name} must be a table")
        return value

    def finish(self) -> None:
        if self._table:
            raise self.wrong(f"unknown key {', '.join(sorted(self._table))}")
