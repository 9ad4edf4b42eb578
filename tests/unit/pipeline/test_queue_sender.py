"""Archived records as messages of a queue."""

from __future__ import annotations

import pytest

from penstock.pipeline.archive.replaying import NotSendable, entry_of


def test_what_cannot_be_a_message_is_told_with_its_place() -> None:
    with pytest.raises(NotSendable, match="partition 1, offset 7: the value is not UTF-8"):
        entry_of("j", (1, 7, 0, None, b"\xff", None))
    with pytest.raises(NotSendable, match="empty"):
        entry_of("j", (1, 7, 0, None, None, None))
    entry = entry_of("j", (1, 7, 0, b"\x00", b"x", [{"key": "b", "value": b"\xff"}]))
    assert len(entry["MessageGroupId"]) == 64
    assert entry["MessageDeduplicationId"] == "replay-j-1-7"
    binary = {"b": {"DataType": "Binary", "BinaryValue": "/w=="}}
    assert entry["MessageAttributes"] == binary
    headers = [{"key": "b", "value": b"\xff"}, {"key": "penstock.type.b", "value": b"String"}]
    entry = entry_of("j", (1, 7, 0, b"k", b"x", headers))
    assert entry["MessageAttributes"] == binary, "the declared type does not fit the bytes"
