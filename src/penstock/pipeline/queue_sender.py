"""Archived records to a FIFO queue, with SQS's own SendMessageBatch.

A record's key becomes the message group, so that what was in order stays so; its headers become
attributes. The deduplication id is made of the replay, the partition and the offset: a message that
is sent again within the queue's window is there once. Only text can be a body; a record that is
none, or that no message can hold, ends the replay with its place, rather than being left out.
"""

import base64
import hashlib
import http
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from penstock.model.limits import BATCH_ENTRIES_MAX, MESSAGE_BYTES_MAX
from penstock.pipeline.replaying import SYSTEM_HEADER, Standing, Way
from penstock.pipeline.sqs_calls import Endpoint, Sqs, SqsRefused, SqsUnreachable

_GROUP: Final = re.compile(r"[!-~]{1,128}")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_TYPE_PREFIX: Final = "penstock.type."
_TRIES: Final = 8
_PAUSE_S: Final = 0.1


class NotSendable(Exception):
    """A record cannot be a message of this queue, or the queue refused it."""


class QueueSender:
    def __init__(self, way: Way) -> None:
        assert way.queue is not None
        self._way = way
        secret = Path(way.queue.secret_file).read_text(encoding="utf-8").strip()
        self._sqs = Sqs(Endpoint(way.queue.endpoint, way.queue.region, way.queue.key_id, secret))
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
