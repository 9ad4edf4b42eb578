"""Records for tests of webhook formats, made from any bytes and any attributes."""

from __future__ import annotations

from hypothesis import strategies as st

from penstock.model.message import Attribute, Message, Record

MESSAGE_ID = bytes(range(16))
MESSAGE_ID_TEXT = "00010203-0405-0607-0809-0a0b0c0d0e0f"
ARN = "arn:aws:sns:eu-west-1:000000000000:orders"
AT_MS = 1_769_860_800_123  # 2026-01-31T12:00:00.123Z
TIME = "2026-01-31T12:00:00.123Z"


def record(
    body: bytes = b"{}",
    *,
    offset: int = 7,
    group: str | None = None,
    at_ms: int = AT_MS,
    message_id: bytes = MESSAGE_ID,
    **attributes: str | bytes,
) -> Record:
    found = {
        name.replace("content_type", "content-type"): Attribute(
            "Binary" if isinstance(value, bytes) else "String",
            value if isinstance(value, bytes) else value.encode(),
        )
        for name, value in attributes.items()
    }
    return Record(offset, at_ms, Message(message_id, body, found or None, group))


CORE = ("id", "source", "type", "time", "subject", "dataschema", "datacontenttype", "specversion")
NAMES = st.one_of(
    st.sampled_from([f"ce_{name}" for name in (*CORE, "data", "partitionkey", "sequence")]),
    st.sampled_from(["content-type", "ce_", "ce-type", "other"]),
    st.from_regex(r"ce_[a-z0-9]{1,12}", fullmatch=True),
    st.text(max_size=12),
)
MEDIA_TYPES = st.sampled_from(
    ["application/json", "text/json; x=y", "image/png", "application/vnd.a+json", "text/plain"]
)
VALUES = st.one_of(
    st.text(max_size=30).map(str.encode),
    st.binary(max_size=30),
    MEDIA_TYPES.map(str.encode),
    st.sampled_from([b"2020-02-30T00:00:00Z", b"2018-04-05T17:31:00.123456789+02:00", b"\r\nx: y"]),
)
ATTRIBUTES = st.dictionaries(
    NAMES, st.builds(Attribute, st.sampled_from(["String", "Binary"]), VALUES), max_size=6
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=5,
)
GROUPS = st.none() | st.text(max_size=10)
