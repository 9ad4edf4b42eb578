"""The errors of commands: three lines for a person, one exit code for a script.

A failure states what did not happen, why, and what to do about it. Exit codes are a promise to
scripts, so they are listed once, here, and mean the same in every command. ``main.py`` prints a
failure and exits; ``Refused`` is made from an error reply of the server."""

from collections.abc import Mapping
from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    UNREACHABLE = 5  # no reply, or the server replied to retry later
    CONFLICT = 6
    PARTIAL = 7  # done in part; the output names the rest
    UNHEALTHY = 8
    TIMEOUT = 124  # as timeout(1) does
    INTERRUPTED = 130  # as a shell reports Ctrl-C


class Failure(Exception):
    """An error of a command, raised anywhere and caught once, in ``main.run``."""

    def __init__(
        self, what: str, why: str = "", fix: str = "", *, exit_code: ExitCode = ExitCode.FAILED
    ) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix
        self.exit_code = exit_code

    def lines(self) -> list[str]:
        parts = (("error: ", self.what), ("  why: ", self.why), ("   do: ", self.fix))
        return [label + " ".join(text.split()) for label, text in parts if text]


# AWS error codes, without prefix. For other codes the HTTP status decides.
_EXIT_CODE_BY_FAULT: Mapping[str, ExitCode] = {
    "QueueDoesNotExist": ExitCode.NOT_FOUND,
    "NonExistentQueue": ExitCode.NOT_FOUND,
    "ResourceNotFoundException": ExitCode.NOT_FOUND,
    "QueueNameExists": ExitCode.CONFLICT,
    "QueueAlreadyExists": ExitCode.CONFLICT,
    "QueueDeletedRecently": ExitCode.CONFLICT,
    "PurgeQueueInProgress": ExitCode.CONFLICT,
    "OverLimit": ExitCode.UNREACHABLE,
    "RequestThrottled": ExitCode.UNREACHABLE,
    "ServiceUnavailable": ExitCode.UNREACHABLE,
    "ReceiptHandleIsInvalid": ExitCode.FAILED,
}

_FIX_BY_FAULT: Mapping[str, str] = {
    "QueueDoesNotExist": "list queues with `penstock queue list`; a queue is in one region",
    "queue_not_found": "list queues with `penstock queue list`; a queue is in one region",
    "QueueNameExists": "change the existing queue with `penstock queue set`, or pick another name",
    "QueueDeletedRecently": "wait a minute after deleting a queue, or pick another name",
    "PurgeQueueInProgress": "a queue can be purged once a minute: wait, then try again",
    "ReceiptHandleIsInvalid": "copy the whole receipt that `penstock message receive` printed",
    "RequestThrottled": "try again in a moment, or send fewer requests",
    "OverLimit": "delete or release messages in flight, then try again",
    "access_denied": "ask an administrator of the tenant, or an operator; see"
    " `penstock policy test`",
    "ResourceNotFoundException": "list dead-letter queues with `penstock dlq list`",
}

# Errors that only their messages distinguish.
_FIX_BY_WORDS: Mapping[str, str] = {
    "parameter MessageGroupId": "add --group NAME",
    "ContentBasedDeduplication": "add --dedup-id ID, or `penstock queue set NAME --content-dedup`",
}

_EXIT_CODE_BY_STATUS: Mapping[int, ExitCode] = {
    401: ExitCode.DENIED,
    403: ExitCode.DENIED,
    404: ExitCode.NOT_FOUND,
    408: ExitCode.TIMEOUT,
    409: ExitCode.CONFLICT,
    429: ExitCode.UNREACHABLE,
    502: ExitCode.UNREACHABLE,
    503: ExitCode.UNREACHABLE,
    504: ExitCode.TIMEOUT,
}

_FIX_BY_EXIT_CODE: Mapping[ExitCode, str] = {
    ExitCode.DENIED: "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for the admin API"
    " PENSTOCK_KEY_ID and PENSTOCK_SECRET, or PENSTOCK_TOKEN",
    ExitCode.UNREACHABLE: "try again in a moment; `penstock doctor` checks the server",
}


class Refused(Failure):
    """The server rejected a request. ``fault`` is the error code, such as QueueDoesNotExist."""

    def __init__(self, what: str, *, status: int, fault: str, message: str) -> None:
        code = _EXIT_CODE_BY_FAULT.get(fault) or _EXIT_CODE_BY_STATUS.get(status, ExitCode.FAILED)
        fix = _FIX_BY_FAULT.get(fault) or fix_in(message) or _FIX_BY_EXIT_CODE.get(code, "")
        why = f"{message} ({fault})" if fault else message
        super().__init__(what, why or f"HTTP status {status}", fix, exit_code=code)
        self.status = status
        self.fault = fault


def fix_in(message: str) -> str:
    """Return the advice for an error message; empty if there is none."""
    return next((fix for words, fix in _FIX_BY_WORDS.items() if words in message), "")


def unreachable(url: str, reason: str) -> Failure:
    return Failure(
        f"cannot reach {url}",
        reason,
        "is `penstock serve` running? another address: --endpoint URL or PENSTOCK_ENDPOINT",
        exit_code=ExitCode.UNREACHABLE,
    )


def timed_out(url: str, seconds: float) -> Failure:
    return Failure(
        f"no reply from {url}",
        f"waited {seconds:g} s",
        "wait longer with --timeout SECONDS, or run `penstock doctor`",
        exit_code=ExitCode.TIMEOUT,
    )
