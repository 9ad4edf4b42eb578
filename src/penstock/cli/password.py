"""Derives from a password what a server stores to check it (RFC 5802): one entry per mechanism,
each with its own salt. The server never learns the password."""

import base64
import hashlib
import hmac
import os
import stringprep
import unicodedata
from collections.abc import Mapping
from typing import Any

from penstock.cli.failure import ExitCode, Failure

ITERATIONS = 8_192
SALT_BYTES = 16
_FORBIDDEN = (
    stringprep.in_table_a1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)
_DIGESTS: Mapping[str, str] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def derive(password: str) -> list[dict[str, Any]]:
    prepared = _prepared(password)
    return [_derive(prepared, mechanism) for mechanism in _DIGESTS]


def _derive(password: bytes, mechanism: str) -> dict[str, Any]:
    digest = _DIGESTS[mechanism]
    salt = os.urandom(SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(digest, password, salt, ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", digest)
    return {
        "mechanism": mechanism,
        "iterations": ITERATIONS,
        "salt": base64.b64encode(salt).decode(),
        "stored_key": base64.b64encode(hashlib.new(digest, client_key).digest()).decode(),
        "server_key": base64.b64encode(hmac.digest(salted, b"Server Key", digest)).decode(),
    }


def _prepared(password: str) -> bytes:
    """Apply SASLprep (RFC 4013): different ways to type a password become equal, and characters
    that some clients cannot type are rejected."""
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char
        for char in password
        if not stringprep.in_table_b1(char)
    )
    text = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    why = _unfit(text)
    if why:
        raise Failure("this cannot be a password", why, exit_code=ExitCode.USAGE)
    return text.encode()


def _unfit(text: str) -> str:
    if not text:
        return "nothing is left of it"
    if any(any(test(char) for test in _FORBIDDEN) for char in text):
        return "it holds a control character, or one that not every client can type"
    # A text with right-to-left characters must be right-to-left as a whole.
    if any(map(stringprep.in_table_d1, text)) and (
        any(map(stringprep.in_table_d2, text))
        or not stringprep.in_table_d1(text[0])
        or not stringprep.in_table_d1(text[-1])
    ):
        return "it mixes writing directions"
    return ""
