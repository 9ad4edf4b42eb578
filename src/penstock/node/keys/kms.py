"""Key management services, by a command of the operator.

Every service has a command-line client, so a command supports them all without libraries. It runs
only at the start and at a rotation, to wrap or unwrap the master key. It gets one JSON object on
stdin and writes one to stdout:

    {"operation": "wrap", "context": "<base64>", "plaintext": "<base64>"}    → {"ciphertext": ...}
    {"operation": "unwrap", "context": "<base64>", "ciphertext": "<base64>"} → {"plaintext": ...}

``context`` is the same for wrapping and unwrapping; the service should authenticate it if it can.
The stderr of the command is the server's.
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
REPLY_BYTES_MAX = 65_536


class KmsFailed(PenstockError):
    pass


class Kms(Protocol):
    """Calls block. Raises KmsFailed."""

    def wrap(self, secret: bytes, *, context: bytes) -> bytes: ...

    def unwrap(self, wrapped: bytes, *, context: bytes) -> bytes: ...


class CommandKms:
    """Caches replies. Not thread-safe."""

    def __init__(self, command: str, *, seconds_max: float = COMMAND_SECONDS_MAX) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise KmsFailed(f"keys.kms_command cannot be parsed: {error}") from error
        if not self._command:
            raise KmsFailed("keys.kms_command is empty")
        self._seconds_max = seconds_max
        self._unwrapped: dict[tuple[bytes, bytes], bytes] = {}  # one per master key

    def wrap(self, secret: bytes, *, context: bytes) -> bytes:
        wrapped = self._call("wrap", "plaintext", secret, "ciphertext", context)
        self._unwrapped[wrapped, context] = secret
        return wrapped

    def unwrap(self, wrapped: bytes, *, context: bytes) -> bytes:
        known = self._unwrapped.get((wrapped, context))
        if known is None:
            known = self._call("unwrap", "ciphertext", wrapped, "plaintext", context)
            self._unwrapped[wrapped, context] = known
        return known

    def _call(self, operation: str, given: str, value: bytes, wanted: str, context: bytes) -> bytes:
        request = {
            "operation": operation,
            "context": base64.b64encode(context).decode(),
            given: base64.b64encode(value).decode(),
        }
        reply = self._run(json.dumps(request).encode())
        try:
            found = json.loads(reply)[wanted]
            return base64.b64decode(found, validate=True)
        except (ValueError, KeyError, TypeError, binascii.Error):
            # Without the reply, which may contain the key.
            raise KmsFailed(
                f"{self._command[0]}: {operation}: expected one JSON object with {wanted!r} in"
                " base64"
            ) from None

    def _run(self, request: bytes) -> bytes:
        name = self._command[0]
        try:
            process = subprocess.Popen(  # noqa: S603 - the operator's command
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # so that its child processes can be killed too
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
                    process.stdin.write(request)  # fits into the pipe, so it does not block
                    process.stdin.close()
                except BrokenPipeError:
                    pass  # it did not read the request; its reply and exit code are checked below
                reply = process.stdout.read(REPLY_BYTES_MAX + 1)
            if len(reply) > REPLY_BYTES_MAX:
                _kill(process)
            code = process.wait()
        finally:
            timer.cancel()
        if overdue.is_set():
            raise KmsFailed(f"{name}: no reply within {self._seconds_max:g} s")
        if len(reply) > REPLY_BYTES_MAX:
            raise KmsFailed(f"{name}: the reply is longer than {REPLY_BYTES_MAX} bytes")
        if code:
            raise KmsFailed(f"{name}: ended with exit code {code}")
        return reply


def _kill(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
