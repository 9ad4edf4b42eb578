"""Every rule has a test and says which, and every broken rule that the simulator tries is told of:
what docs/replication.md names exists."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.sim.mutations import MUTATIONS

ROOT = Path(__file__).parents[3]
RULES = [f"R{number}" for number in range(1, 26)] + [f"Q{number}" for number in range(1, 9)]


class Documented(NamedTuple):
    tests: list[tuple[str, str]]  # file, function
    mutations: list[str]


def documented() -> dict[str, Documented]:
    found = {}
    for line in (ROOT / "docs/replication.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and re.fullmatch(r"[RQ]\d+", cells[0]):
            tests = re.findall(r"`([\w/]+\.py)::(\w+)`", cells[2])
            mutations = [name.strip() for name in cells[3].split(";") if name.strip()]
            found[cells[0]] = Documented(tests, mutations)
    return found


def test_every_rule_is_in_the_table_in_order() -> None:
    assert list(documented()) == RULES


@pytest.mark.parametrize("rule", RULES)
def test_the_tests_a_rule_names_exist(rule: str) -> None:
    tests = documented()[rule].tests
    assert tests, f"{rule} has no test"
    for file, name in tests:
        text = (ROOT / "tests/unit" / file).read_text("utf-8")
        assert re.search(rf"def {name}\(", text), f"{file} has no {name}"


def test_every_mutation_stands_with_its_rule() -> None:
    told = {name: rule for rule, found in documented().items() for name in found.mutations}
    of_rules = {name: one.rule for name, one in MUTATIONS.items() if one.rule in RULES}
    assert told == of_rules
    assert len(of_rules) >= len(MUTATIONS) - 2, "others break bookmarks and filters of shares"
