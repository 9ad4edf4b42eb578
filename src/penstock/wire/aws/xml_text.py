"""Text in XML 1.0 documents that we write. We never read XML: no client sends any."""

import re

# Beyond the markup characters: a parser turns a bare carriage return into a line feed, so it must
# be a reference; and what XML 1.0 cannot carry at all (it may stand in the echo of a refused
# value) becomes the replacement character, because a broken document would hide the whole answer.
_ESCAPED = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#xD;"}
_SPECIAL = re.compile('[&<>"\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]')


def _replacement(match: re.Match[str]) -> str:
    return _ESCAPED.get(match.group(), "\ufffd")


def escape(text: str) -> str:
    return _SPECIAL.sub(_replacement, text)


def element(name: str, text: str) -> str:
    return f"<{name}>{escape(text)}</{name}>"
