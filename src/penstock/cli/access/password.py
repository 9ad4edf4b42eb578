"""Derives SCRAM credentials from a password (RFC 5802), one per mechanism, each with its own salt.
The server stores the credentials and never receives the password."""

import base64
import os
import stringprep
import unicodedata
from typing import Any

from penstock.cli.terminal.failure import Misuse
from penstock.wire.kafka import scram

_TABLES = "a1 c12 c21_c22 c3 c4 c5 c6 c7 c8 c9"  # forbidden characters, in RFC 3454
_FORBIDDEN = [getattr(stringprep, f"in_table_{name}") for name in _TABLES.split()]


def derive(password: str) -> list[dict[str, Any]]:
    prepared, iterations = _prepared(password), scram.ITERATIONS_DEFAULT
    derived = []
    for mechanism in scram.DIGESTS:
        salt = os.urandom(scram.SALT_BYTES)
        salted = scram.salted_password(mechanism, prepared, salt=salt, iterations=iterations)
        made = scram.credential_of(
            "", "", mechanism, salted=salted, salt=salt, iterations=iterations
        )
        secrets = {name: getattr(made, name) for name in ("salt", "stored_key", "server_key")}
        encoded = {name: base64.b64encode(data).decode() for name, data in secrets.items()}
        derived.append({"mechanism": mechanism, "iterations": iterations, **encoded})
    return derived


def _prepared(password: str) -> bytes:
    """Apply SASLprep (RFC 4013), so that different ways to type a password give equal bytes."""
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char
        for char in password
        if not stringprep.in_table_b1(char)
    )
    text = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    why = ""
    if not text:
        why = "it is empty after normalization (SASLprep)"
    elif any(any(test(char) for test in _FORBIDDEN) for char in text):
        why = "it has a control character or another forbidden character"
    # A text with right-to-left characters must be right-to-left as a whole.
    elif any(map(stringprep.in_table_d1, text)) and (
        any(map(stringprep.in_table_d2, text))
        or not stringprep.in_table_d1(text[0])
        or not stringprep.in_table_d1(text[-1])
    ):
        why = "it mixes left-to-right and right-to-left text"
    if why:
        raise Misuse("the password is not allowed", why)
    return text.encode()
