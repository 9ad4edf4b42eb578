"""Parses data quality rules, which ``docs/pipeline.md`` describes, and makes the conditions that
check rows against them. A mistake in any rule of a file is reported before any rule runs.

Each rule of a topic becomes one column that is true where a row fails, so that all rules are
checked in one pass and counted in one aggregation; ``unique`` rules add a sort. A missing value
fails only ``not_null``, so that each fault is counted once. JSON is parsed once for each row, as a
variant. A body that is not JSON has no fields."""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.pipeline.toml_tables import TomlTable, tables_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RULES_MAX: Final = 200
FIELDS_MAX: Final = 100  # of one JSON rule
# Types of JSON values, with patterns of the types that Spark gives them.
TYPES: Final[Mapping[str, str]] = {
    "string": "^STRING$",
    "number": "^(BIGINT|DOUBLE|FLOAT)$|^DECIMAL",
    "integer": r"^BIGINT$|^DECIMAL\(\d+,\s*0\)$",
    "boolean": "^BOOLEAN$",
    "object": "^OBJECT",
    "array": "^ARRAY",
}
DAY_S: Final = 86_400


class RulesInvalid(Exception):
    """Raised if a rule is invalid. The error text is one line with the rule and the reason."""


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


class Field(NamedTuple):
    """The location of a value: the whole key or value, a header, or a path in a JSON body."""

    column: str = "value"
    header: str = ""
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.header:
            return f"header:{self.header}"
        return ".".join(self.path) or self.column


class Rule(NamedTuple):
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
    fields: Mapping[tuple[str, ...], str] = {}  # path: type


def parse_rules(text: str) -> tuple[Rule, ...]:
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
        raise given.wrong(
            f"{check.value} does not check single rows, so on_fail cannot be quarantine"
        )
    given.finish()
    return rule


_WITH_FIELD: Final = OF_ROWS - {Check.JSON}


def _field(given: TomlTable) -> Field:
    text = given.text("field", "value")
    if text in ("key", "value"):
        return Field(column=text)
    if text.startswith("header:"):
        if not text.removeprefix("header:"):
            raise given.wrong("'header:' must be followed by the name of a header")
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
        raise given.wrong("the rule must have min, max or both")
    if low is not None and high is not None and low > high:
        raise given.wrong(f"min {low:g} is above max {high:g}")
    return {"minimum": low, "maximum": high}


def _regex(given: TomlTable) -> dict[str, Any]:
    pattern = given.text("pattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise given.wrong(f"pattern '{pattern}' is not a regular expression: {error}") from None
    return {"pattern": pattern}


def _json(given: TomlTable) -> dict[str, Any]:
    fields = {}
    for path, kind in given.table("fields").items():
        if not isinstance(kind, str) or kind.removesuffix("?") not in TYPES:
            raise given.wrong(
                f"the type of {path} must be one of {', '.join(TYPES)}; append ? if it is optional"
            )
        fields[_path(given, path)] = kind
    if len(fields) > FIELDS_MAX:
        raise given.wrong(f"the rule has {len(fields)} fields; at most {FIELDS_MAX} are allowed")
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


COLUMNS: Final = "key,value,headers,topic,partition,offset,timestamp"
_HISTORY: Final = "__history"
_JSON: Final = "__json"


class Result(NamedTuple):
    rule: Rule
    checked: int
    failed: int
    value: float | None = None  # measured value of a rule that does not count rows
    sample: str = ""  # partition:offset of the first failure

    @property
    def is_ok(self) -> bool:
        return self.failed <= self.rule.allowed


def mark(
    rows: "DataFrame", rules: Sequence[Rule], history: "DataFrame | None" = None
) -> "DataFrame":
    """Add a column ``fail_N`` per rule that checks rows. ``unique`` rules also read ``history``."""
    marked = rows.selectExpr("*", f"false AS {_HISTORY}")
    if history is not None:
        marked = marked.unionByName(history.selectExpr("*", f"true AS {_HISTORY}"))
    if any(rule.field.path or rule.check is Check.JSON for rule in rules):
        text = "try_validate_utf8(cast(value AS string))"
        marked = marked.selectExpr("*", f"try_parse_json({text}) AS {_JSON}")
    fails = [f"coalesce({_fails(rule)}, false) AS fail_{n}" for n, rule in _of_rows(rules)]
    return marked.selectExpr("*", *fails).where(f"NOT {_HISTORY}").drop(_HISTORY, _JSON)


def count(marked: "DataFrame", rules: Sequence[Rule], ends: Mapping[int, int]) -> list[Result]:
    """Count the failures of each rule. ``ends`` are the end offsets of the previous batch."""
    place = "struct(partition, offset)"
    sums = [
        f", count_if(fail_{n}) AS n{n}, min(CASE WHEN fail_{n} THEN {place} END) AS s{n}"
        for n, _ in _of_rows(rules)
    ]
    query = f"""
        SELECT partition, count(*) AS rows, min(offset) AS first, max(offset) AS last
            {"".join(sums)} FROM {{marked}} GROUP BY partition"""  # noqa: S608
    parts = marked.sparkSession.sql(query, marked=marked).collect()
    return [
        _gaps(rule, parts, ends) if rule.check is Check.OFFSET_GAP else _summed(rule, n, parts)
        for n, rule in enumerate(rules)
        if rule.check in OF_ROWS or rule.check is Check.OFFSET_GAP
    ]


def quarantined(marked: "DataFrame", rules: Sequence[Rule]) -> "DataFrame":
    of_rows = _of_rows(rules)
    aside = [f"fail_{n}" for n, rule in of_rows if rule.on_fail is OnFail.QUARANTINE]
    names = [f"if(fail_{n}, {_quoted(rule.name)}, NULL)" for n, rule in of_rows]
    failing = marked.where(" OR ".join(aside) if aside else "false")
    return failing.selectExpr(
        *COLUMNS.split(","),
        f"array_compact(array({', '.join(names)})) AS rules",
        "to_date(timestamp) AS date",
    )


def _of_rows(rules: Sequence[Rule]) -> list[tuple[int, Rule]]:
    return [(number, rule) for number, rule in enumerate(rules) if rule.check in OF_ROWS]


def ends_of(marked: "DataFrame") -> dict[int, int]:
    found = marked.groupBy("partition").agg({"offset": "max"}).collect()
    return {row[0]: row[1] + 1 for row in found}


def _summed(rule: Rule, number: int, parts: Sequence[Any]) -> Result:
    places = [part[f"s{number}"] for part in parts if part[f"s{number}"] is not None]
    first = min(((place.partition, place.offset) for place in places), default=None)
    return Result(
        rule,
        checked=sum(part["rows"] for part in parts),
        failed=sum(part[f"n{number}"] for part in parts),
        sample="" if first is None else f"{first[0]}:{first[1]}",
    )


def _gaps(rule: Rule, parts: Sequence[Any], ends: Mapping[int, int]) -> Result:
    failed, sample = 0, ""
    for part in sorted(parts, key=lambda each: int(each["partition"])):
        first = ends.get(part["partition"], part["first"])
        missing = part["last"] + 1 - first - part["rows"]
        failed += missing
        if missing and not sample:
            sample = f"{part['partition']}:{first}"
    return Result(rule, checked=sum(part["rows"] for part in parts), failed=failed, sample=sample)


def _fails(rule: Rule) -> str:
    """Return an SQL condition that is true where a row fails."""
    raw = _value(rule.field)
    text = f"cast({raw} AS string)"
    number = f"try_cast({text} AS double)"
    match rule.check:
        case Check.NOT_NULL:
            return f"{text} IS NULL"
        case Check.REGEX:
            return f"NOT {text} RLIKE {_quoted(f'^(?:{rule.pattern})$')}"
        case Check.RANGE:
            # A value that is not a number is out of range; this includes NaN.
            bad = f"{number} IS NULL OR isnan({number}) OR {_outside(number, rule)}"
            return f"{text} IS NOT NULL AND ({bad})"
        case Check.SIZE:
            return _outside(f"octet_length({raw})", rule)
        case Check.JSON:
            fails = [f"{_JSON} IS NULL", f"NOT schema_of_variant({_JSON}) LIKE 'OBJECT%'"]
            return " OR ".join([*fails, *(_wrong(*field) for field in rule.fields.items())])
        case Check.SKEW:
            # The time in the field, in milliseconds or as text, against the record's timestamp. A
            # value that is not a time counts as skewed.
            by_text = f"cast(unix_millis(try_to_timestamp({text})) AS double)"
            apart_ms = f"abs(coalesce({number}, {by_text}) - unix_millis(timestamp))"
            assert rule.maximum is not None
            is_far = f"{apart_ms} > double('{rule.maximum * 1_000}')"
            return f"{text} IS NOT NULL AND coalesce({is_far}, true)"
        case Check.UNIQUE:
            same = f"PARTITION BY topic, {text} ORDER BY timestamp, partition, offset"
            before = f"unix_micros(lag(timestamp) OVER ({same}))"
            apart_us = f"unix_micros(timestamp) - {before}"
            return f"{text} IS NOT NULL AND {apart_us} <= {rule.window_s * 1_000_000}"
    raise AssertionError(f"{rule.check} does not check rows")


def _value(at: Field) -> str:
    if at.path:
        return f"try_variant_get({_JSON}, {_json_path(at.path)}, 'string')"
    if at.header:
        named = f"filter(headers, header -> header.key = {_quoted(at.header)})"
        return f"try_element_at({named}, 1).value"
    return at.column


def _outside(number: str, rule: Rule) -> str:
    edges = (("<", rule.minimum), (">", rule.maximum))
    return " OR ".join(f"{number} {sign} double('{at}')" for sign, at in edges if at is not None)


def _wrong(path: tuple[str, ...], kind: str) -> str:
    found = f"schema_of_variant(try_variant_get({_JSON}, {_json_path(path)}, 'variant'))"
    is_absent = f"coalesce({found} = 'VOID', true)"
    is_wrong = f"NOT {found} RLIKE {_quoted(TYPES[kind.removesuffix('?')])}"
    return f"if({is_absent}, {str(not kind.endswith('?')).lower()}, {is_wrong})"


def _json_path(parts: tuple[str, ...]) -> str:
    return _quoted("$" + "".join(f"['{part}']" for part in parts))


def _quoted(text: str) -> str:
    """Return an SQL string literal for Spark, in which a backslash is an escape character."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
