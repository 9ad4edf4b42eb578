"""Wildcards of policies: ``*`` matches any run of characters, ``?`` any single one.

The author of a policy chooses the pattern and the caller chooses the text, so neither must be able
to make matching slow. A pattern is split at its stars; each piece is matched at its first position
and never searched again, so the work is at most the product of both lengths. A policy may have
thousands of patterns: they are stored as text and split when they are matched, because compiling
each to a regular expression takes 100 microseconds. ``${*}``, ``${?}`` and ``${$}`` mean the bare
character in policies of a version with variables."""

import re
from collections.abc import Iterable
from typing import NamedTuple

_TOKEN = re.compile(r"\$\{([*?$])\}|(.)", re.DOTALL)
_STAR = "*"
_ANY = "?"
_ESCAPE = "${"


class Globs:
    """Several patterns; those without wildcards are matched by one set lookup."""

    __slots__ = ("_exact", "_has_escapes", "_wild", "is_everything")

    def __init__(self, patterns: Iterable[str], *, has_escapes: bool = False) -> None:
        exact: set[str] = set()
        wild: list[str] = []
        self.is_everything = False
        self._has_escapes = has_escapes
        for pattern in patterns:
            if _STAR not in pattern and _ANY not in pattern:
                exact.add(_unescaped(pattern) if has_escapes else pattern)
            elif not pattern.strip(_STAR):
                self.is_everything = True
            else:
                wild.append(pattern)
        self._exact = frozenset(exact)
        self._wild = tuple(wild)

    def match(self, text: str) -> bool:
        if self.is_everything or text in self._exact:
            return True
        has_escapes = self._has_escapes
        return any(matches(pattern, text, has_escapes=has_escapes) for pattern in self._wild)


def unescaped(texts: Iterable[str], *, has_escapes: bool) -> list[str]:
    """Replace the escapes in texts without wildcards."""
    return [_unescaped(text) if has_escapes else text for text in texts]


def _unescaped(text: str) -> str:
    if _ESCAPE not in text:
        return text
    return _TOKEN.sub(lambda match: match[1] or match[2], text)


# ── Matching ─────────────────────────────────────────────────────────────────────────────────


def matches(pattern: str, text: str, *, has_escapes: bool = False) -> bool:
    """Return True if the whole of ``text`` matches ``pattern``."""
    is_escaped = has_escapes and _ESCAPE in pattern
    if is_escaped or _ANY in pattern:
        return _matches_pieces(_pieces(pattern, is_escaped=is_escaped), text)
    first, *others = pattern.split(_STAR)
    if not others:
        return pattern == text
    last = others.pop()
    at, end = len(first), len(text) - len(last)
    if at > end or not text.startswith(first) or not text.endswith(last):
        return False
    for piece in others:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


class _Piece(NamedTuple):
    """Part of a pattern between two stars, which may contain question marks."""

    size: int
    parts: tuple[tuple[int, str], ...]  # texts between question marks, each with its position

    def fits(self, text: str, at: int) -> bool:
        return all(text.startswith(part, at + place) for place, part in self.parts)

    def find(self, text: str, start: int, end: int) -> int:
        """Return the first position from ``start`` on where the piece matches, or -1."""
        last = end - self.size
        if not self.parts:
            return start if start <= last else -1
        place, first = self.parts[0]
        at = start - 1
        while (at := text.find(first, at + 1 + place, last + place + len(first)) - place) >= start:
            if self.fits(text, at):
                return at
        return -1


def _matches_pieces(pieces: list[_Piece], text: str) -> bool:
    first, last = pieces[0], pieces[-1]
    if not first.fits(text, 0):
        return False
    if len(pieces) == 1:
        return len(text) == first.size
    at, end = first.size, len(text) - last.size
    if at > end or not last.fits(text, end):
        return False
    for piece in pieces[1:-1]:
        at = piece.find(text, at, end)
        if at < 0:
            return False
        at += piece.size
    return True


def _pieces(pattern: str, *, is_escaped: bool) -> list[_Piece]:
    if not is_escaped:
        return [_piece(piece.split(_ANY)) for piece in pattern.split(_STAR)]
    pieces = [[""]]
    for match in _TOKEN.finditer(pattern):
        escaped, char = match.groups()
        if char == _STAR:
            pieces.append([""])
        elif char == _ANY:
            pieces[-1].append("")
        else:
            pieces[-1][-1] += escaped or char
    return [_piece(piece) for piece in pieces]


def _piece(texts: list[str]) -> _Piece:
    """Make a piece of the texts between question marks."""
    parts: list[tuple[int, str]] = []
    place = 0
    for text in texts:
        if text:
            parts.append((place, text))
        place += len(text) + 1
    return _Piece(place - 1, tuple(parts))
