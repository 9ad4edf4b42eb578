"""Parses the text of an option as a number, choice, size, duration, list, or JSON with offsets.
Each error is one line with the option, its value and the allowed values."""

import json
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

from penstock.net.kafka_client.client import Place

E = TypeVar("E", bound=StrEnum)

_SIZES: Final[Mapping[str, int]] = {
    "": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mb": 1 << 20,
    "mib": 1 << 20, "g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30, "t": 1 << 40, "tb": 1 << 40,
    "tib": 1 << 40,
}  # fmt: skip
_TIMES_MS: Final[Mapping[str, int]] = {
    "ms": 1, "s": 1_000, "sec": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
_QUANTITY: Final = re.compile(r"\s*([0-9]+)\s*([a-zA-Z]*)\s*")


class OptionInvalid(ValueError):
    """Raised if an option is invalid. The text is one line for the user."""


class Options:
    """The options that a user has set, as texts. Names are not case-sensitive."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): str(value) for name, value in given.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._given

    def names(self) -> list[str]:
        return sorted(self._given)

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower(), default).strip()

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name, str(default)).lower()
        if text not in ("true", "false"):
            raise OptionInvalid(f"option {name} must be true or false, not '{text}'")
        return text == "true"

    def number(self, name: str, default: int | None = None, *, least: int = 1) -> int | None:
        if name not in self:
            return default
        text = self.text(name)
        if not re.fullmatch("[+-]?[0-9]{1,18}", text) or int(text) < least:
            raise OptionInvalid(f"option {name} must be a whole number >= {least}, not '{text}'")
        return int(text)

    def choice(self, name: str, kind: type[E], default: E) -> E:
        text = self.text(name, default)
        try:
            return kind(text.lower())
        except ValueError:
            known = ", ".join(kind)
            raise OptionInvalid(f"option {name} must be one of {known}, not '{text}'") from None

    def size(self, name: str) -> int | None:
        return self._quantity(name, _SIZES, "a size such as 64m")

    def duration_ms(self, name: str, default_ms: int) -> int:
        found = self._quantity(name, _TIMES_MS, "a time such as 30s or 15m")
        return default_ms if found is None else found

    def _quantity(self, name: str, units: Mapping[str, int], what: str) -> int | None:
        if name not in self:
            return None
        match = _QUANTITY.fullmatch(self.text(name))
        unit = units.get(match[2].lower()) if match else None
        if match is None or unit is None or len(match[1]) > 15 or not int(match[1]):
            raise OptionInvalid(f"option {name} must be {what}, not '{self.text(name)}'")
        return int(match[1]) * unit

    def names_list(self, name: str) -> list[str]:
        parts = [part.strip() for part in self.text(name).split(",")]
        if not all(parts):
            raise OptionInvalid(f"option {name} must be a list like a,b, not '{self.text(name)}'")
        return parts

    def places(self, name: str) -> list[Place]:
        """Parse partitions from JSON like ``{"topic":[0,1]}``."""
        found = [
            Place(topic, number)
            for topic, numbers in self._json(name).items()
            if isinstance(numbers, list)
            for number in numbers
        ]
        shape = '{"topic":[0,1]}'
        if not found or any(type(n) is not int or n < 0 for _, n in found):
            raise OptionInvalid(f"option {name} must be JSON like {shape}, not '{self.text(name)}'")
        return sorted(set(found))

    def by_place(self, name: str, *, least: int) -> dict[Place, int]:
        """Parse numbers by partition from JSON like ``{"topic":{"0":23,"1":-2}}``."""
        found: dict[Place, int] = {}
        for topic, numbers in self._json(name).items():
            pairs: Iterable[tuple[str, Any]] = (
                numbers.items() if isinstance(numbers, dict) else [("", None)]
            )
            for number, value in pairs:
                is_number = isinstance(value, int) and not isinstance(value, bool)
                if not number.isdecimal() or not is_number or value < least:
                    shape = '{"topic":{"0":23}}'
                    raise OptionInvalid(
                        f"option {name} must be JSON like {shape} with numbers >= {least};"
                        f" the value for topic {topic}, partition {number} is invalid"
                    )
                found[Place(topic, int(number))] = value
        return found

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads(self.text(name))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise OptionInvalid(f"option {name} is not a JSON object: '{self.text(name)[:80]}'")
        return found
