"""Standard Webhooks: the headers that identify and sign a request, and the body that the standard
recommends.

    webhook-id          the same at each attempt, so that endpoints can ignore duplicates
    webhook-timestamp   seconds of the attempt, so that endpoints can reject replayed requests
    webhook-signature   "v1," and the base64 of HMAC-SHA256(secret, id "." timestamp "." body); one
                        for each secret, separated by spaces

A secret is written as ``whsec_`` and the base64 of its bytes."""

from base64 import b64decode, b64encode
from binascii import b2a_base64
from collections.abc import Sequence
from hmac import HMAC
from typing import Final

import msgspec

from penstock.wire.webhooks.content import json_of, text_of

SECRET_PREFIX: Final = "whsec_"  # noqa: S105
SECRET_BYTES: Final = 32  # of a secret that the server creates
SECRET_BYTES_MIN, SECRET_BYTES_MAX = 24, 64  # as the standard has it

_encode = msgspec.json.Encoder().encode


def secret_text(key: bytes) -> str:
    return SECRET_PREFIX + b64encode(key).decode()


def key_of(secret: str) -> bytes | None:
    """Return the bytes of a secret, or None if the text is not a secret."""
    try:
        key = b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        return None
    is_secret = secret.startswith(SECRET_PREFIX)
    return key if is_secret and SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX else None


def signer(secret: str) -> HMAC:
    """Return a keyed hash, which is copied for each signature: half the cost of a new one."""
    key = key_of(secret)
    assert key is not None, "stored secrets are valid"
    return HMAC(key, digestmod="sha256")


def signed_headers(
    signers: Sequence[HMAC], *, request_id: str, at_s: int, body: bytes
) -> tuple[tuple[str, str], ...]:
    start = f"{request_id}.{at_s}.".encode()
    signatures = []
    for keyed in signers:
        mac = keyed.copy()
        mac.update(start)
        mac.update(body)
        signatures.append("v1," + b2a_base64(mac.digest(), newline=False).decode())
    return (
        ("webhook-id", request_id),
        ("webhook-timestamp", str(at_s)),
        ("webhook-signature", " ".join(signatures)),
    )


def document(type_: str, *, timestamp: str, body: bytes, id_: str | None = None) -> bytes:
    """Return the body that the standard recommends: ``type``, ``timestamp`` and ``data``.

    A body that is JSON becomes a JSON value, other text a string, and other bytes the base64 text
    ``data_base64`` instead of ``data``. Documents in a batch have an ``id`` too, which a reply can
    name."""
    found: dict[str, object] = {} if id_ is None else {"id": id_}
    found |= {"type": type_, "timestamp": timestamp}
    data: object = json_of(body)
    if data is None:
        data = text_of(body)
    if data is None:
        found["data_base64"] = body  # msgspec writes bytes as base64
    else:
        found["data"] = data
    return _encode(found)
