"""Parses data quality rules, and makes the columns that check rows against them.

    [[rule]]
    topic = "orders"
    check = "range"              # one of Check, below
    field = "amount"             # key, value, header:NAME, or a path into a JSON body: customer.id
    min = 0
    on_fail = "quarantine"       # alert (default), quarantine, stop
    allowed = 0                  # number of failures that are accepted

A mistake in any rule of a file is reported with the number of the rule, before any rule runs.

Each rule of a topic becomes one column that is true where a row fails, so that all rules are
checked in one pass and counted in one aggregation; ``unique`` rules add a sort. A missing value
only fails ``not_null``, so that each fault is counted once. JSON is parsed once for each row, as a
variant. A body that is not JSON has no fields."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from penstock.pipeline.toml_tables import TomlTable, tables_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RULES_MAX: Final = 200
FIELDS_MAX: Final = 100  # of one JSON rule
TYPES: Final = ("string", "number", "integer", "boolean", "object", "array")
DAY_S: Final = 86_400


class RulesInvalid(Exception):
    """Raised if a rule is invalid. The text is one line with the rule and the reason."""


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
    """The location of a value: the whole key or value, a header, or a path in a JSON body."""

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
        raise given.wrong(f"pattern '{pattern}' is not a regular expression: {error}") from None
    return {"pattern": pattern}


def _json(given: TomlTable) -> dict[str, Any]:
    fields = {}
    for path, kind in given.table("fields").items():
        if not isinstance(kind, str) or kind.removesuffix("?") not in TYPES:
            raise given.wrong(f"{path} must be one of {', '.join(TYPES)}; add ? if optional")
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


@dataclass(frozen=True, slots=True)
class Result:
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
    """Add a column ``fail_N`` for each rule that checks rows. ``history`` has earlier rows."""
    from pyspark.sql import functions as f

    marked = rows.withColumn(_HISTORY, f.lit(False))
    if history is not None:
        marked = marked.unionByName(history.withColumn(_HISTORY, f.lit(True)))
    if any(rule.field.path or rule.check is Check.JSON for rule in rules):
        text = f.try_validate_utf8(f.col("value").cast("string"))
        marked = marked.withColumn(_JSON, f.try_parse_json(text))
    for number, rule in enumerate(rules):
        if rule.check in OF_ROWS:
            fails = f.coalesce(_fails(rule), f.lit(False))
            marked = marked.withColumn(_name(number), fails)
    return marked.where(~f.col(_HISTORY)).drop(_HISTORY, _JSON)


def count(marked: "DataFrame", rules: Sequence[Rule], ends: Mapping[int, int]) -> list[Result]:
    """Return the results of rules. ``ends`` are the end offsets of earlier batches."""
    from pyspark.sql import functions as f

    sums = [f.count("*").alias("rows")]
    for number, rule in enumerate(rules):
        if rule.check in OF_ROWS:
            fails = f.col(_name(number))
            place = f.when(fails, f.struct("partition", "offset"))
            sums += [f.count_if(fails).alias(f"n{number}"), f.min(place).alias(f"s{number}")]
    spans = [f.min("offset").alias("first"), f.max("offset").alias("last")]
    parts = marked.groupBy("partition").agg(*sums, *spans).collect()
    return [
        _gaps(rule, parts, ends) if rule.check is Check.OFFSET_GAP else _summed(rule, n, parts)
        for n, rule in enumerate(rules)
        if rule.check in OF_ROWS or rule.check is Check.OFFSET_GAP
    ]


def quarantined(marked: "DataFrame", rules: Sequence[Rule]) -> "DataFrame":
    from pyspark.sql import functions as f

    of_rows = [(n, rule) for n, rule in enumerate(rules) if rule.check in OF_ROWS]
    aside = [_name(n) for n, rule in of_rows if rule.on_fail is OnFail.QUARANTINE]
    names = [f.when(f.col(_name(n)), f.lit(rule.name)) for n, rule in of_rows]
    failing = marked.where(" OR ".join(aside) if aside else "false")
    return failing.select(
        *COLUMNS.split(","),
        f.array_compact(f.array(*names)).alias("rules"),
        f.to_date("timestamp").alias("date"),
    )


def ends_of(marked: "DataFrame") -> dict[int, int]:
    found = marked.groupBy("partition").agg({"offset": "max"}).collect()
    return {row[0]: row[1] + 1 for row in found}


def _name(number: int) -> str:
    return f"fail_{number}"


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


def _fails(rule: Rule) -> "Column":
    """Return a column that is true where a row fails, and null where the value is missing."""
    from pyspark.sql import functions as f

    match rule.check:
        case Check.NOT_NULL:
            return _text(rule.field).isNull()
        case Check.REGEX:
            return ~_text(rule.field).rlike(f"^(?:{rule.pattern})$")
        case Check.RANGE:
            number = _text(rule.field).try_cast("double")
            # A value that is not a number is out of range; this includes NaN.
            bad = number.isNull() | f.isnan(number) | _outside(number, rule)
            return _text(rule.field).isNotNull() & bad
        case Check.SIZE:
            return _outside(f.octet_length(_bytes(rule.field)), rule)
        case Check.JSON:
            return _json_fails(rule)
        case Check.SKEW:
            return _skewed(rule)
        case Check.UNIQUE:
            return _repeats(rule)
    raise AssertionError(f"{rule.check} does not check rows")


def _outside(number: "Column", rule: Rule) -> "Column":
    from pyspark.sql import functions as f

    below = f.lit(False) if rule.minimum is None else number < rule.minimum
    above = f.lit(False) if rule.maximum is None else number > rule.maximum
    return below | above


def _bytes(at: Field) -> "Column":
    from pyspark.sql import functions as f

    if at.path:
        return f.try_variant_get(f.col(_JSON), _json_path(at.path), "string")
    if at.header:
        named = f.filter("headers", lambda header: header["key"] == at.header)
        return f.try_element_at(named, f.lit(1))["value"]
    return f.col(at.column)


def _text(at: Field) -> "Column":
    return _bytes(at).cast("string")


def _json_path(parts: tuple[str, ...]) -> str:
    return "$" + "".join(f"['{part}']" for part in parts)


def _json_fails(rule: Rule) -> "Column":
    from pyspark.sql import functions as f

    fails = f.col(_JSON).isNull() | ~f.schema_of_variant(_JSON).startswith("OBJECT")
    for path, kind in rule.fields.items():
        part = f.try_variant_get(f.col(_JSON), _json_path(path), "variant")
        found = f.schema_of_variant(part)
        is_absent = found.isNull() | (found == "VOID")
        is_wrong = ~is_absent & ~_is_kind(found, kind.removesuffix("?"))
        fails = fails | is_wrong | (f.lit(False) if kind.endswith("?") else is_absent)
    return fails


def _is_kind(found: "Column", kind: str) -> "Column":
    if kind in ("object", "array"):
        return found.startswith(kind.upper())
    if kind == "number":
        return found.isin("BIGINT", "DOUBLE", "FLOAT") | found.startswith("DECIMAL")
    if kind == "integer":
        return (found == "BIGINT") | found.rlike(r"^DECIMAL\(\d+,\s*0\)$")
    return found == kind.upper()


def _skewed(rule: Rule) -> "Column":
    """Compare the time in a record's field, in milliseconds or as text, with its timestamp in the
    log. A value that is not a time counts as skewed."""
    from pyspark.sql import functions as f

    text = _text(rule.field)
    by_number = text.try_cast("double")
    by_text = f.unix_millis(f.try_to_timestamp(text)).cast("double")
    apart_ms = f.abs(f.coalesce(by_number, by_text) - f.unix_millis(f.col("timestamp")))
    assert rule.maximum is not None
    return text.isNotNull() & f.coalesce(apart_ms > rule.maximum * 1_000, f.lit(True))


def _repeats(rule: Rule) -> "Column":
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    text = _text(rule.field)
    same = Window.partitionBy("topic", text).orderBy("timestamp", "partition", "offset")
    apart_us = f.unix_micros(f.col("timestamp")) - f.unix_micros(f.lag("timestamp").over(same))
    return text.isNotNull() & (apart_us <= rule.window_s * 1_000_000)
