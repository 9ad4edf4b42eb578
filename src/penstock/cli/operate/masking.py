"""Masks secrets in text that leaves the machine.

First values that are known to be secret here (from the environment, from contexts, from the
settings that a server on this machine reads), then text that looks like a secret by its name or its
form."""

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

MASK: Final = "********"
_LENGTH_MIN: Final = 6  # shorter values occur in ordinary words, and protect nothing
_FILE_BYTES_MAX: Final = 65_536

_WORD: Final = r"(?:secret|token|passw(?:or)?d|credential|private|jaas|authorization)"
# Bounded, because a line of a log may have a million letters.
_NAME: Final = rf"[\w.-]{{0,64}}{_WORD}[\w.-]{{0,64}}"
_KEY_ENDS: Final = r"(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
_FORMS: Final = (
    (re.compile(rf"-----BEGIN [A-Z ]{{0,40}}PRIVATE KEY-----.*?{_KEY_ENDS}", re.DOTALL), MASK),
    # "secret": "…" in JSON, and in JSON inside a JSON string
    (re.compile(rf'(?i)(\\?"{_NAME}\\?"\s*:\s*\\?")(?:\\\\.|\\[^"]|[^"\\])*'), rf"\1{MASK}"),
    # secret=…, secret: …, password="…"
    (re.compile(rf"(?i)((?<![\w.]){_NAME}\s*[=:]\s*[\"']?)(?![\s\"'*])[^\s,;&\"']+"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]+"), rf"\1 {MASK}"),
    (re.compile(r"(?i)(\bsignature=)[0-9a-f]{16,}"), rf"\1{MASK}"),
    (re.compile(r"(://[^/\s:@]{0,256}:)[^@/\s]{1,256}@"), rf"\1{MASK}@"),
    (re.compile(r"\bpsat1\.[\w-]+\.[\w-]+"), MASK),  # the token of a log-in
    (re.compile(r"(?i)(?<![0-9a-z])[0-9a-f]{64}(?![0-9a-z])"), MASK),  # 32 bytes, the size of keys
    # 40 characters of base64, the form of the secret of an access key, or 32 bytes in base64.
    (
        re.compile(
            r"(?<![\w+/-])(?=[\w+/-]{0,42}[A-Z])(?=[\w+/-]{0,42}[a-z])"
            r"[\w+/-]{40,43}=?(?![\w+/=-])"
        ),
        MASK,
    ),
)


class Mask:
    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """``secrets``: values to mask wherever they occur."""
        found: set[str] = set()
        for secret in secrets:
            if len(secret) >= _LENGTH_MIN:
                found |= {secret, json.dumps(secret)[1:-1], quote(secret, safe="")}
        # Longest first: one secret may be part of another.
        self._known = sorted(found, key=len, reverse=True)

    @classmethod
    def of_this_machine(cls) -> "Mask":
        return cls([*_of_environment(), *_of_contexts(), *_of_settings()])

    def text(self, text: str) -> str:
        for secret in self._known:
            text = text.replace(secret, MASK)
        for form, shown in _FORMS:
            text = form.sub(shown, text)
        return text

    def bytes(self, data: bytes) -> bytes:
        return self.text(data.decode("utf-8", "replace")).encode()


def _of_environment() -> Iterator[str]:
    for name, value in os.environ.items():
        if re.search(_WORD, name, re.IGNORECASE):
            yield value
            if name.upper().endswith("_FILE"):
                yield from _of_file(value)


def _of_file(path: str) -> Iterator[str]:
    try:
        with Path(path).open("rb") as file:
            yield file.read(_FILE_BYTES_MAX).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return


def _of_contexts() -> Iterator[str]:
    from penstock.cli.clients.contexts import Contexts
    from penstock.cli.terminal.failure import Failure

    try:
        contexts = Contexts.read().contexts.values()
    except Failure:
        return
    for context in contexts:
        yield context.get("secret", "")


def _of_settings() -> Iterator[str]:
    """Yield the admin token of a server that would be started here."""
    from penstock.node.configuration import config as node_config

    try:
        config = node_config.load({}, os.environ, node_config.config_files(None)).config
    except node_config.ConfigInvalid:
        return
    yield config.admin.token
