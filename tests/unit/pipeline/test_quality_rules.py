"""Rules of data quality: parsing, and the judgement of topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.pipeline.jobs.quality import judge
from penstock.pipeline.quality.rules import Result, Rule, RulesInvalid, parse_rules
from penstock.pipeline.toml_tables import read_text

NOON_MS = 1_772_366_400_000


def rules(*tables: str) -> list[Rule]:
    return list(parse_rules("".join(f'[[rule]]\ntopic = "t"\n{table}\n' for table in tables)))


def test_some_failures_may_be_allowed() -> None:
    (rule,) = rules('check = "not_null"\nallowed = 2')
    assert Result(rule, 10, 2).is_ok
    assert not Result(rule, 10, 3).is_ok


@pytest.mark.parametrize(
    ("table", "want"),
    [
        ('check = "wrong"', "rule 1: check must be one of"),
        ('check = "range"\nfield = "a"', "must have min, max or both"),
        ('check = "range"\nmin = 2\nmax = 1', "min 2 is above max 1"),
        ('check = "range"\nmin = "a"', "min must be a number"),
        ('check = "regex"\npattern = "("', "pattern"),
        ('check = "json"\nfields = { a = "text" }', "a must be one of string"),
        ('check = "not_null"\nfield = "a..b"', "not a path"),
        ('check = "not_null"\nfield = "header:"', "followed by the name"),
        ('check = "not_null"\nmini = 1', "unknown key mini"),
        ('check = "volume"\nmin = 1\non_fail = "quarantine"', "not check single rows"),
        ('check = "freshness"', "max_age_s is missing"),
        ('check = "not_null"\nallowed = -1', "allowed"),
        ('check = "not_null"\n[[rule]]\ntopic = "t"\ncheck = "not_null"', "two rules"),
        ("check = ", "not valid TOML"),
    ],
)
def test_a_mistake_in_a_rule_is_told_with_its_place(table: str, want: str) -> None:
    with pytest.raises(RulesInvalid, match=want):
        rules(table)


def test_no_rules_a_missing_file_and_a_topic_that_is_none_are_told(tmp_path: Path) -> None:
    for text, want in (
        ("", "0 rules"),
        ('[[rule]]\ntopic = "a b"\ncheck = "size"\nmin = 1', "name"),
    ):
        with pytest.raises(RulesInvalid, match=want):
            parse_rules(text)
    with pytest.raises(RulesInvalid, match="cannot read"):
        read_text(tmp_path / "none", RulesInvalid)
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(RulesInvalid, match="UTF-8"):
        read_text(tmp_path / "latin", RulesInvalid)


def test_age_and_volume_are_judged_at_their_bounds() -> None:
    fresh, volume = rules(
        'check = "freshness"\nmax_age_s = 10', 'check = "volume"\nmin = 5\nmax = 9'
    )
    assert [judge(fresh, s).is_ok for s in (0.0, 10.0, 10.001, None)] == [True, True, False, False]
    assert [judge(volume, n).is_ok for n in (4, 5, 9, 10)] == [False, True, True, False]
