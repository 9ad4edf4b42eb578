"""The bytes of SQS requests as an AWS SDK would send them, made ahead of time.

Headers carry a signature of the right form and length, because reading them is part of a server's
cost; no server measured here checks it. Texts taken out of replies (receipts) are copied as they
stand: a JSON string cut out of one document is a JSON string in the next.
"""

from collections.abc import Sequence

_AGENT = (
    "Boto3/1.44.0 md/Botocore#1.44.0 ua/2.1 os/linux#6.1.0 md/arch#x86_64 lang/python#3.11.7 "
    "md/pyimpl#CPython m/Z,b,e cfg/retry-mode#legacy Botocore/1.44.0"
)
_SIGNED = "content-type;host;x-amz-date;x-amz-target;x-amzn-query-mode"
_ACCESS_KEY = "AKIAIOSFODNN7EXAMPLE"
_SIGNATURE = "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
_INVOCATION = "a1b2c3d4-0f0e-4d0c-8b0a-090807060504"


class RequestMaker:
    """Requests to one server. The head of each action is made once."""

    def __init__(self, host: str, port: int, *, stamp: str) -> None:
        """``stamp`` is the signing time as AWS writes it, ``20261115T030000Z``."""
        self._address = f"{host}:{port}"
        self._stamp = stamp
        self._heads: dict[str, bytes] = {}

    def make(self, action: str, body: bytes) -> bytes:
        head = self._heads.get(action)
        if head is None:
            head = self._heads[action] = self._head(action)
        return b"%b%d\r\n\r\n%b" % (head, len(body), body)

    def _head(self, action: str) -> bytes:
        scope = f"{self._stamp[:8]}/us-east-1/sqs/aws4_request"
        signature = (
            f"AWS4-HMAC-SHA256 Credential={_ACCESS_KEY}/{scope}, "
            f"SignedHeaders={_SIGNED}, Signature={_SIGNATURE}"
        )
        lines = (
            "POST / HTTP/1.1",
            f"Host: {self._address}",
            "Accept-Encoding: identity",
            f"X-Amz-Target: AmazonSQS.{action}",
            "Content-Type: application/x-amz-json-1.0",
            "x-amzn-query-mode: true",
            f"User-Agent: {_AGENT}",
            f"X-Amz-Date: {self._stamp}",
            f"Authorization: {signature}",
            f"amz-sdk-invocation-id: {_INVOCATION}",
            "amz-sdk-request: attempt=1",
            "Content-Length: ",
        )
        return "\r\n".join(lines).encode()


class QueueRequests:
    """The requests of one queue."""

    def __init__(self, maker: RequestMaker, queue_url: str, *, body_bytes: int) -> None:
        self._maker = maker
        self._queue = b'{"QueueUrl":"%b",' % queue_url.encode()
        self.text = b"x" * body_bytes

    def send(self, text: bytes | None = None) -> bytes:
        body = self._queue + b'"MessageBody":"%b"}' % (self.text if text is None else text)
        return self._maker.make("SendMessage", body)

    def send_fifo(self, group: int, serial: bytes) -> bytes:
        body = self._queue + (
            b'"MessageBody":"%b","MessageGroupId":"g%d","MessageDeduplicationId":"%b"}'
            % (self.text, group, serial)
        )
        return self._maker.make("SendMessage", body)

    def send_batch(self, count: int) -> bytes:
        entries = b",".join(
            b'{"Id":"%d","MessageBody":"%b"}' % (index, self.text) for index in range(count)
        )
        return self._maker.make("SendMessageBatch", self._queue + b'"Entries":[%b]}' % entries)

    def send_fifo_batch(self, entries: Sequence[tuple[int, bytes]]) -> bytes:
        parts = b",".join(
            b'{"Id":"%d","MessageBody":"%b","MessageGroupId":"g%d","MessageDeduplicationId":"%b"}'
            % (index, self.text, group, serial)
            for index, (group, serial) in enumerate(entries)
        )
        return self._maker.make("SendMessageBatch", self._queue + b'"Entries":[%b]}' % parts)

    def receive(self, count: int, *, wait_s: int = 0) -> bytes:
        body = self._queue + b'"MaxNumberOfMessages":%d,"WaitTimeSeconds":%d}' % (count, wait_s)
        return self._maker.make("ReceiveMessage", body)

    def delete(self, receipt: bytes) -> bytes:
        body = self._queue + b'"ReceiptHandle":"%b"}' % receipt
        return self._maker.make("DeleteMessage", body)

    def delete_batch(self, receipts: Sequence[bytes]) -> bytes:
        entries = b",".join(
            b'{"Id":"%d","ReceiptHandle":"%b"}' % pair for pair in enumerate(receipts)
        )
        return self._maker.make("DeleteMessageBatch", self._queue + b'"Entries":[%b]}' % entries)
