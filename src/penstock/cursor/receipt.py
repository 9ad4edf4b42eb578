"""Receipts: proof that a record was leased, in a form that only this queue can have made.

    0        2            4         12           20                 36
    version  partition    offset    lease_seq    HMAC-SHA256, first 16 bytes
    u16      u16          u64       u64          over bytes 0-19 and the topic's id

in URL-safe base64: 48 characters, no padding, so one receipt has one spelling. It needs no table
to check, so it survives restarts and works on whichever node leads the partition. The topic's id
is signed but not carried: a receipt of another queue, or of a deleted queue with the same name,
does not verify.

To change the layout: take the next version number and keep opening the old one for twelve hours,
the longest a lease can live.
"""

import binascii
import hmac
import struct
from base64 import b64decode, b64encode

from penstock.model.errors import InvalidReceipt
from penstock.model.message import Claim

VERSION = 1
_CLAIM = struct.Struct(">HHQQ")
assert _CLAIM.size == 20
_MAC_BYTES = 16
_TEXT_CHARS = (_CLAIM.size + _MAC_BYTES) * 4 // 3
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_PLAIN = str.maketrans("-_", "+/")


def _mac(signed: bytes, topic_id: str, key: bytes) -> bytes:
    return hmac.digest(key, signed + topic_id.encode(), "sha256")[:_MAC_BYTES]


def seal(topic_id: str, key: bytes, claim: Claim) -> str:
    signed = _CLAIM.pack(VERSION, claim.partition, claim.offset, claim.lease_seq)
    sealed = signed + _mac(signed, topic_id, key)
    return b64encode(sealed).translate(_URL_SAFE).decode("ascii")


def open_receipt(text: str, topic_id: str, key: bytes) -> Claim:
    """Raises InvalidReceipt, and nothing else, for anything that ``seal`` did not make."""
    if len(text) != _TEXT_CHARS:
        raise InvalidReceipt("The input receipt handle is invalid.")
    try:
        sealed = b64decode(text.translate(_PLAIN), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidReceipt("The input receipt handle is invalid.") from None
    signed = sealed[: _CLAIM.size]
    if len(sealed) != _CLAIM.size + _MAC_BYTES or not hmac.compare_digest(
        sealed[_CLAIM.size :], _mac(signed, topic_id, key)
    ):
        raise InvalidReceipt("The input receipt handle is invalid.")
    version, partition, offset, lease_seq = _CLAIM.unpack(signed)
    if version != VERSION:
        raise InvalidReceipt("The input receipt handle is invalid.")
    return Claim(partition, offset, lease_seq)
