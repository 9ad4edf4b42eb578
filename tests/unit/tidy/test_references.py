"""The reference pages in docs/ are those that the code writes."""

from pathlib import Path

import pytest
from tools.references import DOCS, MARK, PAGES, main

from penstock.frontend.admin.api import ADMIN_ROUTES
from penstock.node.configuration.config import Config
from penstock.node.configuration.settings import declared
from penstock.telemetry.families import FAMILIES


def test_the_reference_pages_are_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--check"])
    assert code == 0, capsys.readouterr().out


def test_a_page_that_differs_is_named_and_keeps_the_text_above_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tools.references.DOCS", tmp_path)
    for name in PAGES:
        (tmp_path / name).write_text(f"by hand\n\n{MARK}\nold\n")
    assert main(["--check"]) == 1
    said = capsys.readouterr().out
    assert all(name in said for name in PAGES)
    assert main([]) == 0
    assert main(["--check"]) == 0
    assert (tmp_path / "cli.md").read_text().startswith(f"by hand\n\n{MARK}\n\n## ")


def test_nothing_is_left_out() -> None:
    configuration, metrics, admin = (
        (DOCS / name).read_text("utf-8")
        for name in ("configuration.md", "metrics.md", "admin-api.md")
    )
    for setting in declared(Config).values():
        assert f"`{setting.name}`" in configuration
    assert all(f"`{family.name}`" in metrics for family in FAMILIES)
    assert admin.count("\n| `") == len(ADMIN_ROUTES)
