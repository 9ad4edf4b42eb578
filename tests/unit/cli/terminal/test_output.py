"""The same data as a table, as JSON, as JSON lines and as names."""

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.terminal.output import Column, Output, duration, field, one_line
from penstock.model.units import size

ROWS: list[dict[str, Any]] = [{"name": "a", "count": 1_234}, {"name": "bb", "count": None}]
COLUMNS = (Column("name", "NAME"), Column("count", "COUNT", is_number=True))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(form: str | None, *, stream: io.StringIO | None = None) -> str:
    stream = stream or io.StringIO()
    Output(form, stream=stream).many(ROWS, columns=COLUMNS)
    return stream.getvalue()


def test_several_things_in_a_pipe_are_one_json_object_a_line() -> None:
    assert [json.loads(line) for line in written(None).splitlines()] == ROWS


def test_one_thing_in_a_pipe_is_one_json_object() -> None:
    stream = io.StringIO()
    Output(None, stream=stream).one(ROWS[0])
    assert json.loads(stream.getvalue()) == ROWS[0]


def test_json_of_several_things_is_an_array() -> None:
    assert json.loads(written("json")) == ROWS


def test_name_is_the_name_alone() -> None:
    assert written("name") == "a\nbb\n"


def test_a_table_in_a_pipe_is_plain_aligned_text() -> None:
    assert written("table") == "NAME  COUNT\na     1,234\nbb        -\n"


def test_a_terminal_gets_a_table_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    text = written(None, stream=Terminal())
    assert "NAME" in text
    assert "1,234" in text
    assert "{" not in text


def test_markup_in_a_cell_is_shown_and_not_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    stream = Terminal()
    Output(None, stream=stream).many([{"name": "[red]x[/red]"}], columns=COLUMNS[:1])
    assert "[red]x[/red]" in stream.getvalue()


def test_names_outside_ascii_stay_readable() -> None:
    stream = io.StringIO()
    Output("ndjson", stream=stream).many([{"name": "grün"}], columns=COLUMNS)
    assert "grün" in stream.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.9, "59s"), (60, "1m"), (303, "5m 3s"), (7_800, "2h 10m"), (349_200, "4d 1h")],
)
def test_a_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_sizes_have_binary_units() -> None:
    assert [size(1_000), size(2_048), size(3 * 1_048_576)] == ["1000 B", "2.0 KiB", "3.0 MiB"]


@given(st.text(), st.integers(2, 50))
def test_a_body_in_a_cell_is_one_line_and_no_wider_than_asked(text: str, width: int) -> None:
    shown = one_line(text, width)
    assert len(shown) <= width
    assert shown.isprintable()


def drawn(monkeypatch: pytest.MonkeyPatch, cell: str, **environment: str) -> str:
    for name in ("CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    Output(None, stream=stream).many([{"name": cell}], columns=COLUMNS[:1])
    return stream.getvalue()


def test_a_failed_check_is_red_unless_colours_are_not_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    red = "\x1b[31m"
    assert f"{red}✗" in drawn(monkeypatch, "✗")
    assert red not in drawn(monkeypatch, "✗ is a body like any other")
    assert red not in drawn(monkeypatch, "✗", NO_COLOR="1")


def test_nothing_is_a_sentence_on_a_terminal_and_no_line_in_a_pipe() -> None:
    def of(form: str | None, stream: io.StringIO) -> str:
        Output(form, stream=stream).many([], columns=COLUMNS, empty="no queues")
        return stream.getvalue()

    assert of(None, Terminal()) == "no queues\n"
    assert of("table", io.StringIO()) == ""
    assert of(None, io.StringIO()) == ""
    assert of("json", io.StringIO()) == "[]\n"
    assert of("json", Terminal()) == "[]\n"


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("started_at_ms", 1_794_820_624_799, "started  2026-11-16 09:17:04 UTC"),
        ("created_at_s", 1_794_820_624, "created  2026-11-16 09:17:04 UTC"),
        ("lag_s", 75.3, "lag  1m 15s"),
        ("log_bytes", 2_048, "log  2.0 KiB"),
        ("sent_per_s", 3, "sent per s  3"),
        ("in_flight", 1_234, "in flight  1,234"),
    ],
)
def test_a_field_is_shown_in_its_unit(key: str, value: float, line: str) -> None:
    stream = io.StringIO()
    Output("table", stream=stream).one({key: value})
    assert stream.getvalue() == line + "\n"
    assert field(key).key == key
