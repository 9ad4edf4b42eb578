"""The thinnest SQS client that can tell the three ends of a call apart: answered, certainly not
done, and nobody knows. Real SDKs hide the difference behind retries, and a fault test lives on it.
One instance per thread; it speaks AWS JSON 1.0 over one kept-alive connection."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, Protocol


class SqsClient(Protocol):
    """What a load needs of a client: the calls, and their ends told apart."""

    seconds: float  # the deadline of a call
    is_calling: bool

    def call(
        self, operation: str, request: Mapping[str, object], *, wait_seconds: float = 0.0
    ) -> dict[str, Any]: ...

    def close(self) -> None: ...


class Refused(Exception):
    """No connection was made, so the server cannot have done anything."""


class Unanswered(Exception):
    """The request may have reached the server, and no answer came back."""


class Hanging(Unanswered):
    """No answer within the deadline."""

    def __init__(self, reason: str, *, where: str = "") -> None:
        super().__init__(reason)
        self.where = where  # host:port, for a client that knows several servers


class Fault(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message

    @property
    def is_definite(self) -> bool:
        """Whether the request was certainly not carried out. A 5xx leaves it open: a sync that
        failed may still have reached the disk."""
        return self.status < 500


class RawClient:
    def __init__(self, port: int, *, seconds: float = 15.0) -> None:
        self.port = port
        self.seconds = seconds
        self.is_calling = False
        self._connection: http.client.HTTPConnection | None = None

    def call(
        self, operation: str, request: Mapping[str, object], *, wait_seconds: float = 0.0
    ) -> dict[str, Any]:
        """One call. ``wait_seconds`` is what a long poll may take before its deadline counts."""
        self.is_calling = True
        try:
            return self._call(operation, request, self.seconds + wait_seconds)
        finally:
            self.is_calling = False

    def _call(
        self, operation: str, request: Mapping[str, object], seconds: float
    ) -> dict[str, Any]:
        body = json.dumps(request).encode()
        connection = self._connect(seconds)
        headers = {
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": f"AmazonSQS.{operation}",
        }
        try:
            connection.request("POST", "/", body, headers)
            reply = connection.getresponse()
            text = reply.read()
        except TimeoutError as error:
            self.close()
            raise Hanging(f"{operation}: {error}") from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unanswered(f"{operation}: {error!r}") from error
        if reply.will_close:
            self.close()
        if reply.status != 200:
            raise _fault(reply.status, text)
        decoded: dict[str, Any] = json.loads(text) if text else {}
        return decoded

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        connection = self._connection
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
            try:
                connection.connect()
            except OSError as error:
                connection.close()
                raise Refused(str(error)) from error
            self._connection = connection
        connection.sock.settimeout(seconds)
        return connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _fault(status: int, text: bytes) -> Fault:
    try:
        decoded = json.loads(text)
    except ValueError:
        return Fault(status, "", text[:200].decode("utf-8", "replace"))
    code = str(decoded.get("__type", "")).rpartition("#")[2]
    return Fault(status, code, str(decoded.get("message", "")))
