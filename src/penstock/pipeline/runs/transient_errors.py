"""Decides which failures of a query are transient and worth a retry: after a restart of the server,
the death of a Python worker or planner, or a JVM without memory, the checkpoint is intact. Spark
reports errors as text, so the text is searched for known transient errors; all others count as
permanent."""

import re
from collections.abc import Iterator

from penstock.net.kafka_client.errors import KafkaRefused, KafkaTrouble
from penstock.pipeline.runs.status import ERROR_CHARACTERS_MAX
from penstock.wire.kafka.faults import ErrorCode

_ERRORS = re.escape(KafkaTrouble.__module__)  # tracebacks show classes with their module
_REFUSALS = "|".join(code.name for code in ErrorCode if KafkaRefused(code).is_passing)
_PASSING = re.compile(
    r"Python worker exited unexpectedly"
    r"|Python worker failed to connect back"
    r"|Connection (?:refused|reset)"
    r"|Connection(?:Refused|Reset|Aborted)Error"
    r"|BrokenPipeError|Broken pipe"
    r"|java\.io\.EOFException"
    r"|java\.net\.Socket(?:Timeout)?Exception"
    r"|Answer from Java side is empty|Error while (?:sending|receiving)"  # the JVM has ended
    rf"|\b{_ERRORS}\.(?:Unreachable|HungUp|TimedOut)\b"
    rf"|\b{_ERRORS}\.KafkaRefused: .*\((?:{_REFUSALS})\)"
)
_PYTHON_END = re.compile(r"[A-Za-z_][\w.]*: ")
_FRAME = re.compile(
    r"^\[STREAM_FAILED\] Query .*? terminated with exception:|SQLSTATE: \w+$|^JVM stacktrace:"
)
_CAUSED_BY = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_CAUSES_MAX = 16  # a chain of causes may be cyclic


def is_transient(error: BaseException) -> bool:
    for cause in _chain(error):
        if isinstance(cause, KafkaTrouble):
            return cause.is_passing
        if isinstance(cause, ConnectionError) or _PASSING.search(_text(cause)):
            return True
    return False


def reason_of(error: BaseException) -> str:
    """Return the cause in one line: the last line of a Python traceback, else the first line of
    Spark's text without prefix and SQLSTATE, else the innermost exception of the JVM."""
    lines = [line.strip() for line in _text(error).splitlines() if line.strip()]
    in_python = [line for line in lines if _PYTHON_END.match(line)]
    if in_python and any(line.startswith("Traceback (most recent") for line in lines):
        chosen = in_python[-1]
    else:
        chosen = _FRAME.sub("", lines[0]).strip() if lines else ""
    if not chosen:
        causes = [found for each in _chain(error) for found in _CAUSED_BY.findall(_text(each))]
        chosen = causes[-1] if causes else type(error).__name__
    return " ".join(chosen.split())[:ERROR_CHARACTERS_MAX]


def _chain(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def _text(error: BaseException) -> str:
    """Return the text of an exception. Spark's exceptions get it from the JVM, which may have
    ended."""
    try:
        return str(error)
    except Exception:
        return str(getattr(error, "_desc", "") or type(error).__name__)
