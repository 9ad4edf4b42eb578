"""The bytes of SQS requests as an AWS SDK would send them, made ahead of time.

Headers carry a signature of the right form and length, because reading them is part of a server's
cost; it is a real one when a key is given, for servers that check it. Texts taken out of replies
(receipts) are copied as they stand: a JSON string cut out of one document is a JSON string in the
next.
"""

import uuid
from collections.abc import Iterator, Sequence
from itertools import cycle

from penstock.wire.aws.signer import Credentials, Signer

_AGENT = (
    "Boto3/1.44.0 md/Botocore#1.44.0 ua/2.1 os/linux#6.1.0 md/arch#x86_64 lang/python#3.11.7 "
    "md/pyimpl#CPython m/Z,b,e cfg/retry-mode#legacy Botocore/1.44.0"
)
_SIGNED = "content-type;host;x-amz-date;x-amz-target;x-amzn-query-mode"
_ACCESS_KEY = "AKIAIOSFODNN7EXAMPLE"
_SIGNATURE = "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
_INVOCATION = "a1b2c3d4-0f0e-4d0c-8b0a-090807060504"
_REGION = "us-east-1"
_TYPE = "application/x-amz-json-1.0"


class RequestMaker:
    """Requests to one server. The head of each action is made once."""

    def __init__(self, host: str, port: int, *, stamp: str, key: Credentials | None = None) -> None:
        """``stamp`` is the signing time as AWS writes it, ``20261115T030000Z``: what is signed is
        good for a quarter of an hour. Without a key the signature is of the right form only."""
        self._address = f"{host}:{port}"
        self._stamp = stamp
        self._signer = None if key is None else Signer(key, region=_REGION)
        self._heads: dict[str, bytes] = {}

    def make(self, action: str, body: bytes) -> bytes:
        if self._signer is not None:
            return self._signed(self._signer, action, body)
        head = self._heads.get(action)
        if head is None:
            head = self._heads[action] = self._head(action)
        return b"%b%d\r\n\r\n%b" % (head, len(body), body)

    def _signed(self, signer: Signer, action: str, body: bytes) -> bytes:
        headers = signer.sign(
            host=self._address,
            path="/",
            headers={
                "content-type": _TYPE,
                "x-amz-target": f"AmazonSQS.{action}",
                "x-amzn-query-mode": "true",
            },
            body=body,
            timestamp=self._stamp,
        )
        more = {
            "accept-encoding": "identity",
            "user-agent": _AGENT,
            "amz-sdk-invocation-id": str(uuid.uuid4()),
            "amz-sdk-request": "attempt=1",
            "content-length": str(len(body)),
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **more}.items())
        return f"POST / HTTP/1.1\r\n{lines}\r\n".encode() + body

    def _head(self, action: str) -> bytes:
        scope = f"{self._stamp[:8]}/{_REGION}/sqs/aws4_request"
        signature = (
            f"AWS4-HMAC-SHA256 Credential={_ACCESS_KEY}/{scope}, "
            f"SignedHeaders={_SIGNED}, Signature={_SIGNATURE}"
        )
        lines = (
            "POST / HTTP/1.1",
            f"Host: {self._address}",
            "Accept-Encoding: identity",
            f"X-Amz-Target: AmazonSQS.{action}",
            f"Content-Type: {_TYPE}",
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

    def __init__(
        self, maker: RequestMaker, queue_url: str, *, body_bytes: int, distinct: int = 1
    ) -> None:
        """``distinct``: how many different messages ``sends`` goes round."""
        self._maker = maker
        self._queue = b'{"QueueUrl":"%b",' % queue_url.encode()
        self.text = b"x" * body_bytes
        self._distinct = distinct
        self._sends: Iterator[bytes] | None = None

    def sends(self) -> Iterator[bytes]:
        """Made when first asked for, and shared by all clients."""
        if self._sends is None:
            texts = [
                b"%08d%b" % (number, self.text[8:]) if number else self.text
                for number in range(self._distinct)
            ]
            self._sends = cycle([self.send(text) for text in texts])
        return self._sends

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
