import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.telemetry import logs
from penstock.telemetry.logs import ConsoleFormatter, JsonFormatter, LogFormat, configure, printable


@pytest.fixture(autouse=True)
def _restore_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def logged(format_name: str = "json", level: str = "debug") -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    configure(level, format_name, node="n1", stream=stream)
    return logging.getLogger("penstock.test"), stream


def test_a_line_is_one_json_object_with_the_agreed_keys() -> None:
    log, stream = logged()
    log.info("lease expired", extra={"topic": "t", "offset": 7, "is_late": True, "ratio": 0.5})
    line = json.loads(stream.getvalue())
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "info",
        "event": "lease expired",
        "node": "n1",
        "topic": "t",
        "offset": 7,
        "is_late": True,
        "ratio": 0.5,
    }


def test_a_node_without_a_name_has_no_empty_field() -> None:
    stream = io.StringIO()
    configure("info", "json", stream=stream)
    logging.getLogger("penstock.test").info("x")
    assert json.loads(stream.getvalue()).keys() == {"ts", "level", "event"}


def test_a_terminal_gets_a_readable_line_and_a_pipe_gets_json() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        configure("info", LogFormat.AUTO, stream=stream)
        logging.getLogger("x").warning("disk nearly full", extra={"free_bytes": 5, "path": "/a b"})
    assert 'WARNING disk nearly full free_bytes=5 path="/a b"\n' in terminal.getvalue()
    assert json.loads(pipe.getvalue())["free_bytes"] == 5


def test_lines_go_to_standard_error_and_never_to_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure("info", "json")
    logging.getLogger("x").info("hello")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["event"] == "hello"


def test_configuring_again_replaces_the_handler_and_the_level() -> None:
    log, first = logged(level="debug")
    log.debug("one")
    _, second = logged(level="error")
    log.warning("two")
    log.error("three")
    assert len(first.getvalue().splitlines()) == 1
    assert [json.loads(line)["event"] for line in second.getvalue().splitlines()] == ["three"]


@pytest.mark.parametrize("field", ["body", "Body", "receipt", "secret", "authorization", "token"])
@pytest.mark.parametrize("format_name", ["json", "console"])
def test_bodies_and_secrets_are_withheld(field: str, format_name: str) -> None:
    log, stream = logged(format_name)
    log.info("x", extra={field: "hunter2"})
    assert "hunter2" not in stream.getvalue()
    assert "[withheld]" in stream.getvalue()


def test_bytes_are_shown_by_their_size_alone() -> None:
    log, stream = logged()
    log.info("x", extra={"what": b"hunter2", "nested": [b"a", "b"]})
    assert json.loads(stream.getvalue())["what"] == "7 bytes"


def test_an_exception_is_one_line_with_its_place() -> None:
    log, stream = logged()
    try:
        raise ValueError("bad\nnews")
    except ValueError:
        log.exception("request failed")
    (text,) = stream.getvalue().splitlines()
    line = json.loads(text)
    assert line["error"] == "ValueError: bad\\nnews"
    assert line["at"].startswith("test_logs.py:")


def test_a_field_cannot_take_the_place_of_the_agreed_keys() -> None:
    log, stream = logged()
    log.info("x", extra={"node": "evil", "level": "evil", "ts": "evil", "event": "evil"})
    line = json.loads(stream.getvalue())
    assert (line["node"], line["level"], line["event"]) == ("n1", "info", "x")
    assert line["node_"] == "evil"


def test_long_values_are_cut() -> None:
    log, stream = logged()
    log.info("x", extra={"long": "a" * 100_000})
    assert len(stream.getvalue()) < 5_000


def test_what_json_cannot_hold_is_written_as_text() -> None:
    log, stream = logged()
    log.info("x", extra={"a": float("nan"), "b": float("inf"), "c": object, "d": None, "e": {1: 2}})
    line = json.loads(stream.getvalue(), parse_constant=lambda name: pytest.fail(name))
    assert (line["a"], line["b"], line["d"], line["e"]) == ("nan", "inf", None, "{1: 2}")


def test_a_reader_that_has_gone_does_not_stop_the_node(capsys: pytest.CaptureFixture[str]) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    configure("info", "json", stream=Gone())
    logging.getLogger("x").info("hello")
    assert capsys.readouterr().err == ""


ANYTHING = st.text(st.characters(categories=None), max_size=30)


@given(event=ANYTHING, value=ANYTHING, name=st.text(min_size=1, max_size=10))
@settings(max_examples=100)
def test_nothing_can_forge_a_line_or_drive_a_terminal(event: str, value: str, name: str) -> None:
    record = logging.makeLogRecord({"msg": event, "levelname": "INFO", "levelno": 20})
    if not hasattr(record, name):
        setattr(record, name, value)
    for formatter in (JsonFormatter("n\x1b[2J"), ConsoleFormatter()):
        line = formatter.format(record)
        assert len(line.splitlines()) == 1
        assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in line)
        line.encode()
    json.loads(JsonFormatter("n").format(record))


def test_escapes_stay_readable() -> None:
    assert printable("a\nb\x1b[31m\x9b\u2028ü") == "a\\nb\\x1b[31m\\x9b\\u2028ü"


def test_the_withheld_names_are_lower_case() -> None:
    assert all(name == name.lower() for name in logs.WITHHELD_FIELDS)
