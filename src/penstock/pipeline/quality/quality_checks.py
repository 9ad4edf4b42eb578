"""Checks rows against the rules of data quality, and counts the rows that fail. Each rule of a
topic becomes one column that is true where a row fails, so that all rules are checked in one pass
and counted in one aggregation; a rule about repeats adds a sort. A missing value only fails
``not_null``, so that each fault is counted once.

JSON is parsed once for each row, as a variant. A body that is not JSON has no fields."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.pipeline.quality.rules import OF_ROWS, Check, Field, OnFail, Rule

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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
    """Add a column ``fail_N`` for each rule about rows. ``history``: earlier rows, for repeats."""
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
    """Return a result for each rule about rows or offsets. ``ends``: offsets after earlier
    batches."""
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
    """Return the rows to quarantine, unchanged, with the names of all rules that they fail."""
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
    """Count the missing offsets, within the rows and between them and earlier batches."""
    failed, sample = 0, ""
    for part in sorted(parts, key=lambda each: int(each["partition"])):
        first = ends.get(part["partition"], part["first"])
        missing = part["last"] + 1 - first - part["rows"]
        failed += missing
        if missing and not sample:
            sample = f"{part['partition']}:{first}"
    return Result(rule, checked=sum(part["rows"] for part in parts), failed=failed, sample=sample)


# ── One rule, one column ─────────────────────────────────────────────────────────────────────────


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
    raise AssertionError(f"{rule.check} is not decided by rows")


def _outside(number: "Column", rule: Rule) -> "Column":
    from pyspark.sql import functions as f

    below = f.lit(False) if rule.minimum is None else number < rule.minimum
    above = f.lit(False) if rule.maximum is None else number > rule.maximum
    return below | above


def _bytes(at: Field) -> "Column":
    from pyspark.sql import functions as f

    if at.path:
        return f.try_variant_get(f.col(_JSON), _path(at.path), "string")
    if at.header:
        named = f.filter("headers", lambda header: header["key"] == at.header)
        return f.try_element_at(named, f.lit(1))["value"]
    return f.col(at.column)


def _text(at: Field) -> "Column":
    return _bytes(at).cast("string")


def _path(parts: tuple[str, ...]) -> str:
    return "$" + "".join(f"['{part}']" for part in parts)


def _json_fails(rule: Rule) -> "Column":
    from pyspark.sql import functions as f

    fails = f.col(_JSON).isNull() | ~f.schema_of_variant(_JSON).startswith("OBJECT")
    for path, kind in rule.fields.items():
        part = f.try_variant_get(f.col(_JSON), _path(path), "variant")
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
