"""Structured logs with the standard library's logging, one event per line on standard error.

Code calls ``log.info("lease expired", extra={"topic": ..., "offset": ...})``, with a fixed event
and variable fields. The output is one JSON object per line, or a short readable line at a terminal.
Standard output is not used, because ``serve`` promises to print exactly one line there.

No input from outside can forge a line or control a terminal: control characters are escaped in both
formats. Fields whose names suggest a message body or a secret are hidden, and so is any text after
a word such as "password" that announces a secret."""

import logging
import re
import sys
import traceback
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

import msgspec

FIELD_CHARACTERS_MAX = 4_096  # a longer value is cut
WITHHELD = "[withheld]"
WITHHELD_FIELDS = frozenset(
    {"body", "bodies", "message_body", "receipt", "receipt_key", "secret", "password", "token",
     "authorization", "credentials", "secret_key", "master_key", "data_key", "signing_key",
     "signature", "stored_key", "server_key", "auth_bytes", "cookie"}
)  # fmt: skip

_RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_RESERVED = frozenset({"ts", "level", "event", "node"})
# C0, DEL, C1 (0x9b alone starts a terminal sequence), line and paragraph separators, lone
# surrogates and the marks that reverse the direction of text.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


# Credentials as in headers and query strings, which errors of libraries often quote.
_CREDENTIAL = re.compile(
    r"(?i)\b(signature=|security-token[=:]\s*|bearer\s+|basic\s+|secret[=:]\s*|password[=:]\s*)"
    r"[^\s,;&\"']+"
)


class LogFormat(StrEnum):
    AUTO = "auto"  # console on a terminal, JSON otherwise
    JSON = "json"
    CONSOLE = "console"


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code == 0x0A:
        return "\\n"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def printable(text: str) -> str:
    return _UNSAFE.sub(_escape, text)


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has neither NaN nor infinity
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{len(value)} bytes"  # bytes are bodies or keys; their size is all a log needs
    if isinstance(value, list | tuple | set | frozenset):
        value = ", ".join(str(item) for item in value)
    text = _CREDENTIAL.sub(rf"\1{WITHHELD}", printable(str(value)))
    if len(text) > FIELD_CHARACTERS_MAX:
        return text[:FIELD_CHARACTERS_MAX] + "…"
    return text


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = {}
    for name, value in vars(record).items():
        if name in _RECORD_FIELDS or name.startswith("_"):
            continue
        shown = f"{name}_" if name in _RESERVED else printable(name)
        fields[shown] = WITHHELD if name.lower() in WITHHELD_FIELDS else _plain(value)
    if record.exc_info and record.exc_info[0] is not None:
        kind, error, _ = record.exc_info
        fields["error"] = _plain(f"{kind.__name__}: {error}")
        # The innermost frames show the position; most other frames of a task are the event loop's.
        frames = traceback.extract_tb(record.exc_info[2])[-8:]
        fields["at"] = _plain(
            " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
        )
    return fields


class JsonFormatter(logging.Formatter):
    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = {"node": printable(node)} if node else {}
        self._encode = msgspec.json.Encoder().encode

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": _plain(record.getMessage()),
            **self._node,
            **_fields(record),
        }
        return self._encode(line).decode()


class ConsoleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).astimezone()
        fields = "".join(f" {name}={_quoted(value)}" for name, value in _fields(record).items())
        event = _plain(record.getMessage())
        return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d} {record.levelname:<7} {event}{fields}"


def _quoted(value: object) -> str:
    text = str(value)
    return f'"{text}"' if " " in text or not text else text


class _StderrHandler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Ignore errors, because a closed pipe must not stop the node or print a traceback."""


def configure(
    level: str = "info",
    format: LogFormat | str = LogFormat.AUTO,  # noqa: A002
    *,
    node: str = "",
    stream: TextIO | None = None,
) -> None:
    """Send all logs of this process to standard error. A second call changes the level."""
    stream = stream or sys.stderr
    shape = LogFormat(format)
    if shape is LogFormat.AUTO:
        shape = LogFormat.CONSOLE if stream.isatty() else LogFormat.JSON
    handler = _StderrHandler(stream)
    handler.setFormatter(ConsoleFormatter() if shape is LogFormat.CONSOLE else JsonFormatter(node))
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _StderrHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
