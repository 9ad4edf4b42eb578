"""Reads TOML files that consist of repeated tables, such as ``[[rule]]``. Errors name the table,
and have the exception type that the caller chose."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
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
        if name not in names or not is_list:
            wanted = ", ".join(f"[[{each}]]" for each in names)
            raise error(f"unknown entry {name}; only tables {wanted} are allowed")
        if len(tables) > TABLES_MAX:
            raise error(f"{len(tables)} tables [[{name}]]; at most {TABLES_MAX} are allowed")
    return {name: list(data.get(name, [])) for name in names}


# By kind: the text of the error, and whether a value is valid.
_RULES: Final[Mapping[str, tuple[str, Callable[[Any], bool]]]] = {
    "text": ("a string", lambda value: isinstance(value, str) and 1 <= len(value) <= 1_000),
    "whole": ("a whole number, not {!r}", lambda value: type(value) is int and 0 <= value < 2**53),
    "number": ("a number, not {!r}", lambda v: type(v) in (int, float) and v == v),
    "flag": ("true or false, not {!r}", lambda value: isinstance(value, bool)),
    "texts": (
        "a list of names",
        lambda value: isinstance(value, list) and all(isinstance(e, str) and e for e in value),
    ),
    "table": ("a table", lambda value: isinstance(value, dict)),
}


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

    def _take(self, kind: str, name: str, default: Any = None) -> Any:
        wanted, is_valid = _RULES[kind]
        value = self._table.pop(name, default)
        if not is_valid(value):
            text = "is missing" if value is None else f"must be {wanted.format(value)}"
            raise self.wrong(f"{name} {text}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        return str(self._take("text", name, default))

    def choice(self, name: str, kind: Any, default: Any = None) -> Any:
        value = self._table.pop(name, default)
        try:
            return kind(value)
        except ValueError:
            raise self.wrong(f"{name} must be one of {', '.join(kind)}, not '{value}'") from None

    def whole(self, name: str, default: int | None = None) -> int:
        return int(self._take("whole", name, default))

    def number(self, name: str) -> float | None:
        return float(self._take("number", name)) if name in self else None

    def flag(self, name: str, *, default: bool) -> bool:
        return bool(self._take("flag", name, default))

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(self._take("texts", name, []))

    def table(self, name: str) -> dict[str, Any]:
        return dict(self._take("table", name, {}))

    def finish(self) -> None:
        if self._table:
            raise self.wrong(f"unknown key {', '.join(sorted(self._table))}")
