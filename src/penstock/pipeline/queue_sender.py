"""Archived records to a FIFO queue, with SQS's own SendMessageBatch.

A record's key becomes the message group, so that what was in order stays so; its headers become
attributes. The deduplication id is made of the replay, the partition and the offset: a message that
is sent again within the queue's window is there once. Only text can be a body; a record that is
none, or that no message can hold, ends the replay with its place, rather than being left out.
"""

import base64
import datetime
import hashlib
import http.client
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.model.limits import BATCH_ENTRIES_MAX, MESSAGE_BYTES_MAX
from penstock.pipeline.replaying import SYSTEM_HEADER, Standing, Way
from penstock.wire.aws.sigv4 import CredentialScope, SignedHeaders, signing_key

_GROUP: Final = re.compile(r"[!-~]{1,128}")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_TYPE_PREFIX: Final = "penstock.type."
_TIMEOUT_S: Final = 30.0
_TRIES: Final = 8
_PAUSE_S: Final = 0.1
_SIGNED: Final = ("content-type", "host", "x-amz-date", "x-amz-target")


class NotSendable(Exception):
    """A record cannot be a message of this queue, or the queue refused it."""


class QueueSender:
    def __init__(self, way: Way) -> None:
        assert way.queue is not None
        self._way = way
        self._address = way.queue
        self._secret = Path(way.queue.secret_file).read_text(encoding="utf-8").strip()
        self._url = urlsplit(way.queue.endpoint)
        self._connection: http.client.HTTPConnection | None = None
        self._queue_url = ""
        self._pause = threading.Event()

    def send(self, partition: int, rows: Sequence[Any], standing: Standing) -> bool:  # noqa: ARG002
        if not self._queue_url:
            answer = self._call("GetQueueUrl", {"QueueName": self._way.topic})
            self._queue_url = answer["QueueUrl"]
        for entries in _requests(entry_of(self._way.job, row) for row in rows):
            self._send_all(entries)
        return False  # the queue drops copies without a word

    def _send_all(self, entries: list[dict[str, Any]]) -> None:
        for attempt in range(_TRIES):
            body = {"QueueUrl": self._queue_url, "Entries": entries}
            failed = self._call("SendMessageBatch", body).get("Failed", [])
            if not failed:
                return
            if any(each["SenderFault"] for each in failed):
                raise NotSendable(f"{self._way.topic} refused: {failed[0].get('Message')}")
            # From the first that failed on: what comes behind must not get in front of it.
            first = min(int(each["Id"]) for each in failed)
            entries = [entry for entry in entries if int(entry["Id"]) >= first]
            self._pause.wait(_PAUSE_S * 2**attempt)
        raise NotSendable(f"{self._way.topic} takes no messages")

    def _call(self, action: str, body: Mapping[str, Any]) -> Any:
        for attempt in range(_TRIES):
            try:
                status, answer = self._exchange(action, json.dumps(body).encode())
            except (OSError, http.client.HTTPException) as error:
                self._close()
                if attempt + 1 == _TRIES:
                    raise NotSendable(f"{self._address.endpoint}: {error}") from error
            else:
                if status == 200:
                    return json.loads(answer)
                if status < 500 and status != 429:
                    raise NotSendable(f"{action} was refused: {_told(answer)}")
            self._pause.wait(_PAUSE_S * 2**attempt)
        raise NotSendable(f"{self._address.endpoint} does not answer {action}")

    def _exchange(self, action: str, body: bytes) -> tuple[int, bytes]:
        if self._connection is None:
            is_tls = self._url.scheme == "https"
            dial = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
            self._connection = dial(self._url.netloc, timeout=_TIMEOUT_S)
        self._connection.request("POST", "/", body, self._headers(action, body))
        reply = self._connection.getresponse()
        return reply.status, reply.read()

    def _headers(self, action: str, body: bytes) -> dict[str, str]:
        at = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        headers = {
            "content-type": "application/x-amz-json-1.0",
            "host": self._url.netloc,
            "x-amz-date": at,
            "x-amz-target": f"AmazonSQS.{action}",
        }
        key_id, region = self._address.key_id, self._address.region
        scope = CredentialScope(key_id, at[:8], region, "sqs", SignedHeaders(_SIGNED), "")
        lines = "".join(f"{name}:{headers[name]}\n" for name in _SIGNED)
        digest = hashlib.sha256(body).hexdigest()
        canonical = f"POST\n/\n\n{lines}\n{';'.join(_SIGNED)}\n{digest}"
        key = signing_key(self._secret.encode(), scope)
        signature = key.sign(at, hashlib.sha256(canonical.encode()).hexdigest())
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={key_id}/{at[:8]}/{region}/sqs/aws4_request, "
            f"SignedHeaders={';'.join(_SIGNED)}, Signature={signature}"
        )
        return headers

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def entry_of(job: str, row: Sequence[Any]) -> dict[str, Any]:
    """One record as an entry of SendMessageBatch; raises NotSendable."""
    partition, offset, _, key, value, headers = row
    where = f"partition {partition}, offset {offset}"
    try:
        body = (value or b"").decode("utf-8")
    except UnicodeDecodeError:
        raise NotSendable(f"{where}: the value is no text, and a message must be") from None
    if not body:
        raise NotSendable(f"{where}: a message cannot be empty")
    group = (key or b"").decode("utf-8", "replace")
    if not _GROUP.fullmatch(group):
        group = f"partition-{partition}" if not key else hashlib.sha256(key).hexdigest()
    return {
        "MessageBody": body,
        "MessageGroupId": group,
        "MessageDeduplicationId": f"replay-{job}-{partition}-{offset}",
        "MessageAttributes": _attributes(headers or ()),
    }


def _attributes(headers: Sequence[Any]) -> dict[str, Any]:
    given = {h["key"]: h["value"] or b"" for h in headers if h["key"] != SYSTEM_HEADER}
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name.startswith(_TYPE_PREFIX) or not _NAME.fullmatch(name) or not value:
            continue
        kind = given.get(_TYPE_PREFIX + name, b"").decode("utf-8", "replace")
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            kind = kind or "Binary"
        if kind.startswith("Binary"):
            found[name] = {"DataType": kind, "BinaryValue": base64.b64encode(value).decode()}
        else:
            found[name] = {"DataType": kind or "String", "StringValue": text}
    return found


def _requests(entries: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Up to ten at a time, and no more than a request may hold."""
    gathered: list[dict[str, Any]] = []
    size = 0
    for entry in entries:
        own = len(json.dumps(entry).encode())
        if gathered and (len(gathered) == BATCH_ENTRIES_MAX or size + own > MESSAGE_BYTES_MAX):
            yield gathered
            gathered, size = [], 0
        gathered.append({"Id": str(len(gathered)), **entry})
        size += own
    if gathered:
        yield gathered


def _told(answer: bytes) -> str:
    try:
        return str(json.loads(answer).get("message") or answer[:200])
    except ValueError:
        return str(answer[:200])
