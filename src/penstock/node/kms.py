"""A key management service behind a small port, and the one we ship: a command of the operator's.

Whatever service there is has a command-line client, so a command covers them all without a library
for any. It is run at start and at a rotation only: it unwraps our master key, and the key ring does
the rest in memory. One JSON object on stdin, one on stdout, nothing else between us:

    {"operation": "wrap", "context": "<base64>", "plaintext": "<base64>"}    → {"ciphertext": ...}
    {"operation": "unwrap", "context": "<base64>", "ciphertext": "<base64>"} → {"plaintext": ...}

``context`` comes again at unwrapping as it was at wrapping; a service that can should bind to it.
What the command writes to stderr goes to the server's own.
"""

import base64
import binascii
import json
import os
import shlex
import signal
import subprocess
import threading
from typing import Protocol

from penstock.model.errors import PenstockError

COMMAND_SECONDS_MAX = 30.0
ANSWER_BYTES_MAX = 65_536


class KmsFailed(PenstockError):
    pass


class Kms(Protocol):
    """Blocks. Raises KmsFailed."""

    def wrap(self, secret: bytes, *, context: bytes) -> bytes: ...

    def unwrap(self, wrapped: bytes, *, context: bytes) -> bytes: ...


class CommandKms:
    """Answers are kept: the same thing is asked of the service once. Not for use by two threads
    at a time."""

    def __init__(self, command: str, *, seconds_max: float = COMMAND_SECONDS_MAX) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise KmsFailed(f"keys.kms_command cannot be taken apart: {error}") from error
        if not self._command:
            raise KmsFailed("keys.kms_command is empty")
        self._seconds_max = seconds_max
        self._unwrapped: dict[tuple[bytes, bytes], bytes] = {}  # as few as there are master keys

    def wrap(self, secret: bytes, *, context: bytes) -> bytes:
        wrapped = self._ask("wrap", "plaintext", secret, "ciphertext", context)
        self._unwrapped[wrapped, context] = secret
        return wrapped

    def unwrap(self, wrapped: bytes, *, context: bytes) -> bytes:
        known = self._unwrapped.get((wrapped, context))
        if known is None:
            known = self._ask("unwrap", "ciphertext", wrapped, "plaintext", context)
            self._unwrapped[wrapped, context] = known
        return known

    def _ask(self, operation: str, given: str, value: bytes, wanted: str, context: bytes) -> bytes:
        question = {
            "operation": operation,
            "context": base64.b64encode(context).decode(),
            given: base64.b64encode(value).decode(),
        }
        answer = self._run(json.dumps(question).encode())
        try:
            found = json.loads(answer)[wanted]
            return base64.b64decode(found, validate=True)
        except (ValueError, KeyError, TypeError, binascii.Error):
            # Without the answer itself, which may be the key.
            raise KmsFailed(
                f"{self._command[0]}: {operation}: expected one JSON object with {wanted!r} in"
                " base64"
            ) from None

    def _run(self, question: bytes) -> bytes:
        name = self._command[0]
        try:
            process = subprocess.Popen(  # noqa: S603 - it is the operator's own command
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # so that what it has started ends with it
            )
        except OSError as error:
            raise KmsFailed(f"{name}: cannot be run: {error.strerror}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        overdue = threading.Event()

        def give_up() -> None:
            overdue.set()
            _kill(process)

        timer = threading.Timer(self._seconds_max, give_up)
        timer.start()
        try:
            with process.stdin, process.stdout:
                try:
                    process.stdin.write(question)  # fits the pipe: it never waits for a reader
                    process.stdin.close()
                except BrokenPipeError:
                    pass  # it did not read; what it says instead is judged below
                answer = process.stdout.read(ANSWER_BYTES_MAX + 1)
            if len(answer) > ANSWER_BYTES_MAX:
                _kill(process)
            code = process.wait()
        finally:
            timer.cancel()
        if overdue.is_set():
            raise KmsFailed(f"{name}: no answer within {self._seconds_max:g} s")
        if len(answer) > ANSWER_BYTES_MAX:
            raise KmsFailed(f"{name}: the answer is longer than {ANSWER_BYTES_MAX} bytes")
        if code:
            raise KmsFailed(f"{name}: ended with exit code {code}")
        return answer


def _kill(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
