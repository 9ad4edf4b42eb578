"""Types and helpers for command options, such as durations (``15m``) and sizes (``256KiB``)."""

from collections.abc import Callable
from typing import Any

import click

from penstock.cli.terminal.failure import Misuse
from penstock.model.units import DURATION, SIZE, Kind, misfit, parsed

Command = Callable[..., None]
Texts = tuple[str, ...]


class Parsed(click.ParamType[Any]):
    """A click type made from a function that parses text or raises ValueError with the reason."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _quantity(kind: Kind, *, base: int, low: float, high: float, is_whole: bool) -> Parsed:
    """Return a click type for durations or sizes. If ``is_whole``, it rounds to integers."""

    def parse(text: str) -> float:
        text = text.strip()
        found = parsed(text, kind, base=base)
        if found is None:
            units = ", ".join(kind.units)
            raise ValueError(f"'{text}' is not a {kind.noun}: use a number and a unit ({units})")
        why = misfit(text, found, kind, round(low * base), round(high * base))
        if why is not None:
            raise ValueError(why)
        return round(found / base) if is_whole else found / base

    return Parsed(kind.noun, parse)


def seconds(low: int, high: int) -> Parsed:
    return _quantity(DURATION, base=1_000, low=low, high=high, is_whole=True)


def some_seconds(low: float, high: float) -> Parsed:
    return _quantity(DURATION, base=1_000, low=low, high=high, is_whole=False)


def bytes_of(low: int, high: int) -> Parsed:
    return _quantity(SIZE, base=1, low=low, high=high, is_whole=True)


def option(
    names: str, kind: Any, text: str, *, default: Any = ..., **more: Any
) -> Callable[[Any], Any]:
    """Return a click option. ``names`` contains the flags, and the parameter name if it differs.
    ``kind`` is a click type, a list of choices, or the metavar of a text option."""
    if default is not ...:
        more |= {"default": default, "show_default": default is not None}
    if isinstance(kind, str):
        more["metavar"] = kind
    else:
        more["type"] = click.Choice(kind) if isinstance(kind, list) else kind
    return click.option(*names.split(), help=text, **more)


def several(*options: Callable[[Command], Command]) -> Callable[[Any], Any]:
    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


yes_option = click.option("--yes", is_flag=True, help="skip the confirmation prompt")


def count_option(most: int | None, default: int | None, text: str) -> Callable[[Any], Any]:
    return option("-n --count", click.IntRange(1, most), text, default=default)


def repeatable(names: str, metavar: str, text: str, kind: Any = None) -> Callable[[Any], Any]:
    return option(
        names, kind or click.STRING, f"{text}; repeatable", metavar=metavar, multiple=True
    )


def attribute_of(kind: str, content: str) -> dict[str, Any]:
    """Return a message attribute as SQS and SNS requests have it."""
    field = "BinaryValue" if kind.startswith("Binary") else "StringValue"
    return {"DataType": kind, field: content}


def attribute_from_flag(text: str) -> tuple[str, dict[str, Any]]:
    label, sign, value = text.partition("=")
    name, _, kind = label.partition(":")
    if not name or not sign:
        fix = "write --attribute NAME=VALUE or NAME:Number=VALUE"
        raise Misuse(f"'{text}' is not a valid attribute", fix=fix)
    return name, attribute_of(kind or "String", value)
