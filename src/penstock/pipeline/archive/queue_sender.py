"""Sends archived records to a FIFO queue with SendMessageBatch of SQS.

A record's key becomes the message group, so that order is kept; its headers become attributes. The
deduplication id consists of replay, partition and offset: the queue drops a message that is sent
again within its deduplication window. A body must be text; a record that cannot be a message ends
the replay with an error that names its partition and offset."""

import base64
import hashlib
import http
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.model.limits import BATCH_ENTRIES_MAX, MESSAGE_BYTES_MAX
from penstock.pipeline.client.sqs_client import Endpoint, Sqs, SqsRefused, SqsUnreachable
from penstock.record.message import SYSTEM_HEADER, TYPE_PREFIX

_GROUP: Final = re.compile(r"[!-~]{1,128}")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_TYPE_PREFIX: Final = TYPE_PREFIX.decode()
_TRIES: Final = 8
_PAUSE_S: Final = 0.1


class NotSendable(Exception):
    """A record cannot be a message of this queue, or the queue rejected it."""


@dataclass(frozen=True, slots=True)
class QueueAddress:
    endpoint: str
    region: str
    key_id: str
    secret_file: str  # a path, because plans are logged and must not contain secrets


class QueueSender:
    """A sender of the records of ``job`` to a queue, which drops copies without reporting them."""

    def __init__(self, queue: str, address: QueueAddress, job: str) -> None:
        self._queue = queue
        self._job = job
        secret = Path(address.secret_file).read_text(encoding="utf-8").strip()
        self._sqs = Sqs(Endpoint(address.endpoint, address.region, address.key_id, secret))
        self._queue_url = ""
        self._pause = threading.Event()

    def send(self, rows: Sequence[Any]) -> None:
        if not self._queue_url:
            self._queue_url = self._call("GetQueueUrl", {"QueueName": self._queue})["QueueUrl"]
        for entries in _requests(entry_of(self._job, row) for row in rows):
            self._send_all(entries)

    def _send_all(self, entries: list[dict[str, Any]]) -> None:
        for attempt in range(_TRIES):
            body = {"QueueUrl": self._queue_url, "Entries": entries}
            failed = self._call("SendMessageBatch", body).get("Failed", [])
            if not failed:
                return
            if any(each["SenderFault"] for each in failed):
                raise NotSendable(f"{self._queue} rejected a message: {failed[0].get('Message')}")
            # Retry from the first failed entry on, to keep the order of later ones.
            first = min(int(each["Id"]) for each in failed)
            entries = [entry for entry in entries if int(entry["Id"]) >= first]
            self._pause.wait(_PAUSE_S * 2**attempt)
        raise NotSendable(f"{self._queue} rejects messages after {_TRIES} attempts")

    def _call(self, action: str, request: Mapping[str, Any]) -> Any:
        reason = ""
        for attempt in range(_TRIES):
            try:
                return self._sqs.call(action, request)
            except SqsRefused as error:
                if error.status < 500 and error.status != http.HTTPStatus.TOO_MANY_REQUESTS:
                    raise NotSendable(f"{action} was rejected: {error.message}") from None
                reason = error.message
            except SqsUnreachable as error:
                reason = str(error)
            self._pause.wait(_PAUSE_S * 2**attempt)
        raise NotSendable(f"{action} failed {_TRIES} times: {reason}")


def entry_of(job: str, row: Sequence[Any]) -> dict[str, Any]:
    """Convert a record to an entry of SendMessageBatch. Raises NotSendable."""
    partition, offset, _, key, value, headers = row
    where = f"partition {partition}, offset {offset}"
    try:
        body = (value or b"").decode("utf-8")
    except UnicodeDecodeError:
        raise NotSendable(f"{where}: the value is not UTF-8, but a message must be") from None
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
    given = {h["key"]: h["value"] or b"" for h in headers if h["key"] != SYSTEM_HEADER.decode()}
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name.startswith(_TYPE_PREFIX) or not _NAME.fullmatch(name) or not value:
            continue
        kind = given.get(_TYPE_PREFIX + name, b"").decode("utf-8", "replace")
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            if not kind.startswith("Binary"):
                kind = "Binary"
        if kind.startswith("Binary"):
            found[name] = {"DataType": kind, "BinaryValue": base64.b64encode(value).decode()}
        else:
            found[name] = {"DataType": kind or "String", "StringValue": text}
    return found


def _requests(entries: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Group entries into requests, within the limits of SQS for entries and bytes."""
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
