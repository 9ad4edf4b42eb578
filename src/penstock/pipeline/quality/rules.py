"""Parses the rules of data quality from TOML.

    [[rule]]
    topic = "orders"
    check = "range"              # one of Check, below
    field = "amount"             # key, value, header:NAME, or a path into a JSON body: customer.id
    min = 0
    on_fail = "quarantine"       # alert (default), quarantine, stop
    allowed = 0                  # number of failures that are accepted

A mistake in any rule of a file is reported with the number of the rule, before any rule runs."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from penstock.pipeline.toml_tables import TomlTable, tables_of

RULES_MAX: Final = 200
FIELDS_MAX: Final = 100  # of one JSON rule
TYPES: Final = ("string", "number", "integer", "boolean", "object", "array")
DAY_S: Final = 86_400


class RulesInvalid(Exception):
    """A rule is invalid. The text is one line with the rule and the reason."""


class Check(StrEnum):
    NOT_NULL = "not_null"
    UNIQUE = "unique"
    RANGE = "range"
    REGEX = "regex"
    SIZE = "size"
    JSON = "json"
    SKEW = "skew"
    OFFSET_GAP = "offset_gap"
    FRESHNESS = "freshness"
    VOLUME = "volume"


# Checked row by row; the other rules check a topic as a whole.
OF_ROWS: Final = frozenset(
    (Check.NOT_NULL, Check.UNIQUE, Check.RANGE, Check.REGEX, Check.SIZE, Check.JSON, Check.SKEW)
)


class OnFail(StrEnum):
    ALERT = "alert"  # the run fails with a specific exit code
    QUARANTINE = "quarantine"  # failing rows go to a separate table
    STOP = "stop"  # the run ends before the batch is committed


@dataclass(frozen=True, slots=True)
class Field:
    """The location of a value: a whole key or value, a header, or a path in JSON; one is set."""

    column: str = "value"
    header: str = ""
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.header:
            return f"header:{self.header}"
        return ".".join(self.path) or self.column


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    topic: str
    check: Check
    field: Field = Field()
    on_fail: OnFail = OnFail.ALERT
    allowed: int = 0
    minimum: float | None = None
    maximum: float | None = None
    window_s: int = DAY_S
    pattern: str = ""
    fields: Mapping[tuple[str, ...], str] = dataclasses.field(default_factory=dict)  # path: type


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Raises RulesInvalid."""
    tables = tables_of(text, ("rule",), RulesInvalid)["rule"]
    if not 1 <= len(tables) <= RULES_MAX:
        raise RulesInvalid(f"the file has {len(tables)} rules; 1 to {RULES_MAX} are allowed")
    rules = tuple(_rule(number, dict(table)) for number, table in enumerate(tables, 1))
    seen: set[tuple[str, str]] = set()
    for rule in rules:
        if (rule.topic, rule.name) in seen:
            raise RulesInvalid(f"topic {rule.topic} has two rules named '{rule.name}'")
        seen.add((rule.topic, rule.name))
    return rules


def _rule(number: int, table: dict[str, Any]) -> Rule:
    given = TomlTable(f"rule {number}", table, RulesInvalid)
    topic = given.text("topic")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic):
        raise given.wrong(f"'{topic}' is not the name of a topic")
    check = given.choice("check", Check)
    at = _field(given) if check in _WITH_FIELD else Field()
    rule = Rule(
        name=given.text("name", f"{check.value} {at}" if check in _WITH_FIELD else check.value),
        topic=topic,
        check=check,
        field=at,
        on_fail=given.choice("on_fail", OnFail, OnFail.ALERT),
        allowed=given.whole("allowed", 0),
        **_PARAMETERS[check](given),
    )
    if rule.on_fail is OnFail.QUARANTINE and check not in OF_ROWS:
        raise given.wrong(f"{check.value} has no single rows to quarantine")
    given.finish()
    return rule


_WITH_FIELD: Final = OF_ROWS - {Check.JSON}


def _field(given: TomlTable) -> Field:
    text = given.text("field", "value")
    if text in ("key", "value"):
        return Field(column=text)
    if text.startswith("header:"):
        if not text.removeprefix("header:"):
            raise given.wrong("header: must be followed by a name")
        return Field(column="", header=text.removeprefix("header:"))
    return Field(column="", path=_path(given, text))


def _path(given: TomlTable, text: str) -> tuple[str, ...]:
    parts = tuple(text.split("."))
    if not all(re.fullmatch(r"[A-Za-z_][\w-]{0,99}", part) for part in parts) or len(parts) > 20:
        raise given.wrong(f"'{text}' is not a path into a JSON object, such as customer.id")
    return parts


def _bounds(given: TomlTable) -> dict[str, Any]:
    low, high = given.number("min"), given.number("max")
    if low is None and high is None:
        raise given.wrong("min or max is missing")
    if low is not None and high is not None and low > high:
        raise given.wrong(f"min {low:g} is above max {high:g}")
    return {"minimum": low, "maximum": high}


def _regex(given: TomlTable) -> dict[str, Any]:
    pattern = given.text("pattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise given.wrong(f"pattern '{pattern}': {error}") from None
    return {"pattern": pattern}


def _json(given: TomlTable) -> dict[str, Any]:
    fields = {}
    for path, kind in given.table("fields").items():
        if not isinstance(kind, str) or kind.removesuffix("?") not in TYPES:
            raise given.wrong(f"{path} must be one of {', '.join(TYPES)}, with ? if optional")
        fields[_path(given, path)] = kind
    if len(fields) > FIELDS_MAX:
        raise given.wrong(f"{len(fields)} fields; at most {FIELDS_MAX} are allowed")
    return {"fields": fields}


def _seconds(name: str) -> Callable[[TomlTable], dict[str, Any]]:
    return lambda given: {"maximum": float(given.whole(name))}


_PARAMETERS: Final[Mapping[Check, Callable[[TomlTable], dict[str, Any]]]] = {
    Check.NOT_NULL: lambda _: {},
    Check.UNIQUE: lambda given: {"window_s": given.whole("window_s", DAY_S)},
    Check.RANGE: _bounds,
    Check.REGEX: _regex,
    Check.SIZE: _bounds,
    Check.JSON: _json,
    Check.SKEW: _seconds("max_s"),
    Check.OFFSET_GAP: lambda _: {},
    Check.FRESHNESS: _seconds("max_age_s"),
    Check.VOLUME: lambda given: {**_bounds(given), "window_s": given.whole("window_s", 3_600)},
}
