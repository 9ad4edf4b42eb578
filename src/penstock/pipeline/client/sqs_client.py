"""A blocking SQS client for one thread, which sends AWS JSON over one HTTP connection.

If the connection is lost, a call is retried once. This is safe: a repeated receive only leases more
messages, deletes and extensions are idempotent, and a repeated send to a FIFO queue has the same
deduplication id."""

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.wire.aws.signer import Credentials, Signer

BATCH_MAX: Final = 10  # messages in one call
_MARGIN_S: Final = 15.0
_REPLY_BYTES_MAX: Final = 64 * 1_048_576


class SqsRefused(Exception):
    def __init__(self, action: str, code: str, message: str, status: int = 400) -> None:
        super().__init__(action, code, message, status)
        self.action = action
        self.status = status
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.action}: {self.message} ({self.code})"


class SqsUnreachable(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str
    region: str = "us-east-1"
    access_key: str = ""  # empty: calls are not signed
    secret_key: str = field(default="", repr=False)


class Sqs:
    """An SQS client. Its methods raise SqsRefused and SqsUnreachable."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        parts = urlsplit(endpoint.url)
        self._host = parts.netloc
        self._is_tls = parts.scheme == "https"
        self._link: http.client.HTTPConnection | None = None
        self._signer: Signer | None = None
        if endpoint.access_key:
            credentials = Credentials(endpoint.access_key, endpoint.secret_key)
            self._signer = Signer(credentials, region=endpoint.region)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def queue_url(self, name: str) -> str:
        return str(self.call("GetQueueUrl", {"QueueName": name})["QueueUrl"])

    def waiting_count(self, queue_url: str) -> int:
        """Return the approximate number of messages that can be received now."""
        names = ["ApproximateNumberOfMessages"]
        request = {"QueueUrl": queue_url, "AttributeNames": names}
        return int(self.call("GetQueueAttributes", request)["Attributes"][names[0]])

    def receive(
        self, queue_url: str, *, count: int, lease_s: int, wait_s: int
    ) -> list[dict[str, Any]]:
        request = {
            "QueueUrl": queue_url,
            "MaxNumberOfMessages": min(count, BATCH_MAX),
            "VisibilityTimeout": lease_s,
            "WaitTimeSeconds": wait_s,
            "AttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        }
        found = self.call("ReceiveMessage", request, wait_s=wait_s).get("Messages")
        return list(found or ())

    def delete(self, queue_url: str, receipts: Sequence[str]) -> list[str]:
        """Delete messages, and return the receipts whose leases had expired."""
        return self._each(queue_url, "DeleteMessageBatch", receipts)

    def extend(self, queue_url: str, receipts: Sequence[str], *, lease_s: int) -> list[str]:
        action = "ChangeMessageVisibilityBatch"
        return self._each(queue_url, action, receipts, VisibilityTimeout=lease_s)

    def _each(self, queue_url: str, action: str, receipts: Sequence[str], **more: int) -> list[str]:
        failed: list[str] = []
        for start in range(0, len(receipts), BATCH_MAX):
            some = receipts[start : start + BATCH_MAX]
            entries = [
                {"Id": str(number), "ReceiptHandle": receipt, **more}
                for number, receipt in enumerate(some)
            ]
            reply = self.call(action, {"QueueUrl": queue_url, "Entries": entries})
            failed += [some[int(each["Id"])] for each in reply.get("Failed") or ()]
        return failed

    def call(self, action: str, request: Mapping[str, Any], *, wait_s: int = 0) -> Any:
        body = json.dumps(request).encode()
        for attempt in (1, 2):
            try:
                status, data = self._exchange(action, body, wait_s + _MARGIN_S)
                break
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if attempt == 2 or isinstance(error, ConnectionRefusedError):
                    reason = str(error) or type(error).__name__
                    raise SqsUnreachable(f"cannot reach {self._endpoint.url}: {reason}") from None
        try:
            reply = json.loads(data) if data else {}
        except ValueError:
            raise SqsUnreachable(f"{self._endpoint.url} is not an SQS endpoint") from None
        if status != http.HTTPStatus.OK:
            code = str(reply.get("__type", status)).rpartition("#")[2]
            raise SqsRefused(action, code, str(reply.get("message", "")), status)
        return reply

    def _exchange(self, action: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        if self._link is None:
            if self._is_tls:  # the default context checks certificates and names
                self._link = http.client.HTTPSConnection(self._host)
            else:
                self._link = http.client.HTTPConnection(self._host)
        self._link.timeout = timeout_s
        if self._link.sock is not None:
            self._link.sock.settimeout(timeout_s)
        self._link.request("POST", "/", body, self._headers(action, body))
        reply = self._link.getresponse()
        return reply.status, reply.read(_REPLY_BYTES_MAX)

    def _headers(self, action: str, body: bytes) -> dict[str, str]:
        headers = {
            "content-type": "application/x-amz-json-1.0",
            "x-amz-target": f"AmazonSQS.{action}",
        }
        if self._signer is None:
            return headers
        timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        return self._signer.sign(
            host=self._host, path="/", headers=headers, body=body, timestamp=timestamp
        )
