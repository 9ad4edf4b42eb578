"""Checks of config values. A reader returns the text to store, or raises ValueError with what the
value must be."""

import ipaddress
import re
from collections.abc import Callable
from typing import Final

from penstock.model import stream

INT_MAX: Final = 2**31 - 1
DIGITS_MAX: Final = 20  # of a 64-bit number with its sign
THROTTLED_CHARS_MAX: Final = 32_768  # enough for 1,024 partitions with three replicas

Read = Callable[[str], str]
_THROTTLED = re.compile(r"\d{1,10}:\d{1,10}\Z")


def is_address(text: str) -> bool:
    """Return whether a text is an IP address. Host names are not resolved."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def whole(low: int, high: int) -> Read:
    bound = f"of at least {low}" if high >= INT_MAX else f"from {low} to {high}"

    def read(text: str) -> str:
        digits = text.removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(text) <= DIGITS_MAX
        if not is_number or not low <= int(text) <= high:
            raise ValueError(f"a whole number {bound}")
        return str(int(text))

    return read


def one_or_level(one: int, low: int, high: int) -> Read:
    """Accept a number in a range, or the one number that means the default."""
    within = whole(low, high)

    def read(text: str) -> str:
        if text == str(one):
            return text
        try:
            return within(text)
        except ValueError as error:
            raise ValueError(f"{error}, or {one}") from None

    return read


def decimal(low: float, high: float) -> Read:
    bound = f"from {low:g} to {high:g}" if high < float("inf") else f"of at least {low:g}"

    def read(text: str) -> str:
        try:
            is_right = len(text) <= 2 * DIGITS_MAX and low <= float(text) <= high
        except ValueError:
            is_right = False
        if not is_right:
            raise ValueError(f"a number {bound}")
        return text

    return read


share: Final = decimal(0.0, 1.0)


def flag(text: str) -> str:
    lower = text.lower()
    if lower not in ("true", "false"):
        raise ValueError("true or false")
    return lower


def is_false(text: str) -> str:
    if text.lower() != "false":
        raise ValueError("false, because there is no tiered storage")
    return "false"


def choice(*choices: str) -> Read:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text

    return read


def cleanup_policies(text: str) -> str:
    """An empty text is valid: nothing is deleted or compacted."""
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text else ()
    if not set(parts) <= {stream.DELETE, stream.COMPACT}:
        raise ValueError("delete, compact, both with a comma between them, or empty")
    return ",".join(parts)


def throttled_replicas(text: str) -> str:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    is_right = parts == ["*"] or all(map(_THROTTLED.match, parts))
    if not is_right or len(text) > THROTTLED_CHARS_MAX:
        raise ValueError(
            "* or a list of PARTITION:NODE with commas between them, of at most"
            f" {THROTTLED_CHARS_MAX:,} characters"
        )
    return ",".join(parts)
