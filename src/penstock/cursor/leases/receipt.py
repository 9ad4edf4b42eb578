"""Receipts, which prove that a record was leased, signed with a key of the queue.

    0        2            4         12           20                 36
    version  partition    offset    lease_seq    HMAC-SHA256, first 16 bytes
    u16      u16          u64       u64          over the topic's id and bytes 0-19

A receipt is the URL-safe base64 of these bytes: 48 characters without padding. No table is needed
to check it, so it stays valid after restarts and on any node that leads the partition, but not for
another queue or a new queue with the same name. To change the layout, take the next version number
and accept the old one for twelve more hours, the maximum duration of a lease."""

import hashlib
import hmac
import struct
from binascii import a2b_base64, b2a_base64
from functools import lru_cache

from penstock.model.errors import InvalidReceipt
from penstock.model.message import Claim

VERSION = 1
_CLAIM = struct.Struct(">HHQQ")
assert _CLAIM.size == 20
_MAC_BYTES = 16
_TEXT_CHARS = (_CLAIM.size + _MAC_BYTES) * 4 // 3
_INVALID = "The input receipt handle is invalid."
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_BLOCK_BYTES = 64  # block size of SHA-256
_QUEUES_MAX = 4_096  # cached hash states


@lru_cache(maxsize=_QUEUES_MAX)
def _keyed(topic_id: str, key: bytes) -> tuple["hashlib._Hash", "hashlib._Hash"]:
    """Return HMAC's inner and outer hash states after the key and the topic id (slow, so
    cached)."""
    if len(key) > _BLOCK_BYTES:
        key = hashlib.sha256(key).digest()
    padded = key.ljust(_BLOCK_BYTES, b"\0")
    inner = hashlib.sha256(bytes([byte ^ 0x36 for byte in padded]))
    inner.update(topic_id.encode())
    return inner, hashlib.sha256(bytes([byte ^ 0x5C for byte in padded]))


def _mac(signed: bytes, topic_id: str, key: bytes) -> bytes:
    inner, outer = _keyed(topic_id, key)
    inner = inner.copy()
    inner.update(signed)
    outer = outer.copy()
    outer.update(inner.digest())
    return outer.digest()[:_MAC_BYTES]


def seal(topic_id: str, key: bytes, claim: Claim) -> str:
    signed = _CLAIM.pack(VERSION, claim.partition, claim.offset, claim.lease_seq)
    sealed = signed + _mac(signed, topic_id, key)
    return b2a_base64(sealed, newline=False).translate(_URL_SAFE).decode("ascii")


def open_receipt(text: str, topic_id: str, key: bytes) -> Claim:
    """Return the claim in a receipt. Raises InvalidReceipt if this queue did not issue it."""
    if len(text) != _TEXT_CHARS or "+" in text or "/" in text:
        raise InvalidReceipt(_INVALID)
    try:
        sealed = a2b_base64(text.replace("-", "+").replace("_", "/"), strict_mode=True)
    except ValueError:  # binascii.Error, or a character outside ASCII
        raise InvalidReceipt(_INVALID) from None
    signed = sealed[: _CLAIM.size]
    if not hmac.compare_digest(sealed[_CLAIM.size :], _mac(signed, topic_id, key)):
        raise InvalidReceipt(_INVALID)
    version, partition, offset, lease_seq = _CLAIM.unpack(signed)
    if version != VERSION:
        raise InvalidReceipt(_INVALID)
    return Claim(partition, offset, lease_seq)
