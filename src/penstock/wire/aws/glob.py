"""Wildcards as policies know them: ``*`` for any run of characters, ``?`` for any single one.

Whoever writes a policy chooses the pattern and whoever calls chooses the text, so matching must not
blow up for either. A pattern is cut at its stars; each piece is found as far left as possible and
never looked for again (an atomic group), so the work is at most pattern times text, whatever the
two hold. ``${*}``, ``${?}`` and ``${$}`` stand for the bare character in policies that know
variables.
"""

import re
from collections.abc import Iterable

_TOKEN = re.compile(r"\$\{([*?$])\}|(.)", re.DOTALL)
_STAR = "*"
_ANY = "?"


class Globs:
    """Several patterns at once. Those without wildcards are one look-up."""

    __slots__ = ("_exact", "_patterns", "is_everything")

    def __init__(self, patterns: Iterable[str], *, has_escapes: bool = False) -> None:
        exact: set[str] = set()
        wild: list[re.Pattern[str]] = []
        self.is_everything = False
        for pattern in patterns:
            text = _literal(pattern, has_escapes=has_escapes)
            if text is not None:
                exact.add(text)
            elif not pattern.strip(_STAR):
                self.is_everything = True
            else:
                wild.append(_compiled(pattern, has_escapes=has_escapes))
        self._exact = frozenset(exact)
        self._patterns = tuple(wild)

    def match(self, text: str) -> bool:
        if self.is_everything or text in self._exact:
            return True
        return any(pattern.fullmatch(text) is not None for pattern in self._patterns)


def unescaped(texts: Iterable[str], *, has_escapes: bool) -> list[str]:
    """Where there are no wildcards: what the texts stand for."""
    if not has_escapes:
        return list(texts)
    return [_TOKEN.sub(lambda match: match[1] or match[2], text) for text in texts]


def _tokens(pattern: str, *, has_escapes: bool) -> list[tuple[str, bool]]:
    """Each character, and whether it is a wildcard."""
    if not has_escapes:
        return [(char, char in (_STAR, _ANY)) for char in pattern]
    found = []
    for match in _TOKEN.finditer(pattern):
        escaped, char = match.groups()
        found.append((escaped, False) if escaped else (char, char in (_STAR, _ANY)))
    return found


def _literal(pattern: str, *, has_escapes: bool) -> str | None:
    """What a pattern without wildcards stands for; None for one that has some."""
    tokens = _tokens(pattern, has_escapes=has_escapes)
    if any(is_wild for _, is_wild in tokens):
        return None
    return "".join(char for char, _ in tokens)


def _compiled(pattern: str, *, has_escapes: bool) -> re.Pattern[str]:
    pieces = [""]
    for char, is_wild in _tokens(pattern, has_escapes=has_escapes):
        if is_wild and char == _STAR:
            pieces.append("")
        else:
            pieces[-1] += "." if is_wild else re.escape(char)
    if len(pieces) == 1:
        return re.compile(pieces[0], re.DOTALL)
    first, *middle, last = pieces
    found = "".join(f"(?>.*?{piece})" for piece in middle if piece)
    return re.compile(f"{first}{found}.*{last}", re.DOTALL)
