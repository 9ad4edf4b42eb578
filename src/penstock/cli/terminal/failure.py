"""The errors of commands. Each has three lines for people (what failed, why, what to do) and an
exit code for scripts. An exit code means the same in every command and never changes."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    UNREACHABLE = 5  # no reply, or the server replied to retry later
    CONFLICT = 6
    PARTIAL = 7  # some items failed; the output names them
    UNHEALTHY = 8
    TIMEOUT = 124  # as timeout(1) does
    INTERRUPTED = 130  # as a shell reports Ctrl-C


PASSING = (ExitCode.UNREACHABLE, ExitCode.TIMEOUT)  # a retry may succeed


class Failure(Exception):
    EXIT_CODE: ClassVar = ExitCode.FAILED

    def __init__(
        self, what: str, why: str = "", fix: str = "", *, exit_code: ExitCode | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix
        self.exit_code = self.EXIT_CODE if exit_code is None else exit_code

    def lines(self) -> list[str]:
        parts = (("error: ", self.what), ("  why: ", self.why), ("   do: ", self.fix))
        return [label + " ".join(text.split()) for label, text in parts if text]


class Misuse(Failure):
    EXIT_CODE = ExitCode.USAGE


class NotFound(Failure):
    EXIT_CODE = ExitCode.NOT_FOUND


class Conflict(Failure):
    EXIT_CODE = ExitCode.CONFLICT


class Unhealthy(Failure):
    EXIT_CODE = ExitCode.UNHEALTHY


# AWS error codes without their prefix, and HTTP statuses for replies with other error codes.
_FAULTS: Mapping[ExitCode, str] = {
    ExitCode.NOT_FOUND: "QueueDoesNotExist NonExistentQueue ResourceNotFoundException 404",
    ExitCode.CONFLICT: "QueueNameExists QueueAlreadyExists QueueDeletedRecently"
    " PurgeQueueInProgress 409",
    ExitCode.UNREACHABLE: "OverLimit RequestThrottled ServiceUnavailable 429 502 503",
    ExitCode.DENIED: "401 403",
    ExitCode.TIMEOUT: "408 504",
    ExitCode.FAILED: "ReceiptHandleIsInvalid",
}
_EXIT_CODES = {fault: code for code, faults in _FAULTS.items() for fault in faults.split()}

_FIX_BY_FAULT: Mapping[str, str] = {
    "QueueDoesNotExist": "list queues with `penstock queue list`, and check --region",
    "queue_not_found": "list queues with `penstock queue list`, and check --region",
    "QueueNameExists": "change the queue with `penstock queue set`, or choose another name",
    "QueueDeletedRecently": "retry 60 seconds after the deletion, or choose another name",
    "PurgeQueueInProgress": "wait: a queue can be purged once every 60 seconds",
    "ReceiptHandleIsInvalid": "copy the whole receipt that `penstock message receive` printed",
    "RequestThrottled": "retry in a moment, or send fewer requests",
    "OverLimit": "delete or release messages in flight, then retry",
    "access_denied": "ask an administrator of the tenant for permission; check it with"
    " `penstock policy test`",
    "ResourceNotFoundException": "list dead-letter queues with `penstock dlq list`",
}

# Fixes of errors that have a common code and differ in these words of their messages.
_FIX_BY_WORDS: Mapping[str, str] = {
    "parameter MessageGroupId": "add --group NAME",
    "ContentBasedDeduplication": "add --dedup-id ID, or `penstock queue set NAME --content-dedup`",
}

_FIX_BY_EXIT_CODE: Mapping[ExitCode, str] = {
    ExitCode.DENIED: "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for the admin API"
    " PENSTOCK_KEY_ID and PENSTOCK_SECRET, or PENSTOCK_TOKEN",
    ExitCode.UNREACHABLE: "retry in a moment, or check the server with `penstock doctor`",
}


class Refused(Failure):
    """The server rejected a request. ``fault`` is the error code, such as QueueDoesNotExist."""

    def __init__(self, what: str, *, status: int, fault: str, message: str) -> None:
        code = _EXIT_CODES.get(fault) or _EXIT_CODES.get(str(status), ExitCode.FAILED)
        fix = _FIX_BY_FAULT.get(fault) or fix_in(message) or _FIX_BY_EXIT_CODE.get(code, "")
        why = f"{message} ({fault})" if fault else message
        super().__init__(what, why or f"HTTP status {status}", fix, exit_code=code)
        self.status = status
        self.fault = fault


def fix_in(message: str) -> str:
    return next((fix for words, fix in _FIX_BY_WORDS.items() if words in message), "")


def unreachable(url: str, reason: str) -> Failure:
    return Failure(
        f"cannot reach {url}",
        reason,
        "is `penstock serve` running? set another address with --endpoint URL or PENSTOCK_ENDPOINT",
        exit_code=ExitCode.UNREACHABLE,
    )


def timed_out(url: str, seconds: float) -> Failure:
    return Failure(
        f"request to {url} timed out",
        f"no reply within {seconds:g} s",
        "raise --timeout SECONDS, or check the server with `penstock doctor`",
        exit_code=ExitCode.TIMEOUT,
    )


def nearest(given: str, names: Iterable[str]) -> str:
    from difflib import get_close_matches

    return next(iter(get_close_matches(given, list(names), n=1)), "")


def no_such(kind: str, given: str, names: Iterable[str]) -> NotFound:
    known = list(names)
    near = nearest(given, known)
    hint = f"did you mean '{near}'? " if near else ""
    fix = f"{hint}list {kind}s with `penstock {kind} list`"
    return NotFound(f"{kind} '{given}' does not exist", f"{len(known)} {kind}s exist", fix)
