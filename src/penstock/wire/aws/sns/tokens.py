"""Tokens by which an endpoint confirms its subscription, or restores it after an unsubscribe.

    0        1              9                  25          57            80
    version  expires at ms  subscription id    region      padding       HMAC-SHA512
    u8       u64            16 bytes           32 bytes    23 bytes      over bytes 0-79

A token is these bytes as 288 hex digits, the length that SNS uses. Region and padding are filled
with zeros. No table is needed to check a token, so it is valid on every node. To change the layout,
take the next version number and accept the old one for two more days."""

import hmac
import re
import struct
from typing import Final, NamedTuple

from penstock.model.errors import InvalidRequest
from penstock.model.limits import CONFIRMATION_MS
from penstock.model.names import uuid_text

VERSION: Final = 1
_SIGNED = struct.Struct(">BQ16s32s23x")
_TOKEN_BYTES: Final = 144
assert _SIGNED.size + 64 == _TOKEN_BYTES
_HEX = re.compile(rf"[0-9a-f]{{{2 * _TOKEN_BYTES}}}\Z")


class Token(NamedTuple):
    subscription_id: str
    region: str


def make_token(key: bytes, token: Token, *, now_ms: int) -> str:
    """Return a token that is valid for 48 hours. ``key`` must be a secret that all nodes share."""
    raw_id = bytes.fromhex(token.subscription_id.replace("-", ""))
    region = token.region.encode("ascii")
    assert len(raw_id) == 16
    assert len(region) <= 32
    signed = _SIGNED.pack(VERSION, now_ms + CONFIRMATION_MS, raw_id, region)
    return (signed + hmac.digest(key, signed, "sha512")).hex()


def read_token(key: bytes, text: str, *, now_ms: int) -> Token:
    """Return the content of a token. Raises InvalidRequest if it is forged or has expired."""
    if _HEX.match(text) is not None:
        raw = bytes.fromhex(text)
        signed, mac = raw[: _SIGNED.size], raw[_SIGNED.size :]
        if hmac.compare_digest(mac, hmac.digest(key, signed, "sha512")):
            version, expires_at_ms, raw_id, region = _SIGNED.unpack(signed)
            if version == VERSION and now_ms < expires_at_ms:
                return Token(uuid_text(raw_id), region.rstrip(b"\0").decode("ascii"))
    raise InvalidRequest("Invalid parameter: Token")
