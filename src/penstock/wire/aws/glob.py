"""Wildcards as policies know them: ``*`` for any run of characters, ``?`` for any single one.

Whoever writes a policy chooses the pattern and whoever calls chooses the text, so matching must not
blow up for either. A pattern is cut at its stars; each piece is found as far left as possible and
never looked for again, so the work is at most pattern times text, whatever the two hold. A policy
may have thousands of patterns: they are kept as they are written and cut when they are matched,
because compiling each to a regular expression takes 100 microseconds. ``${*}``, ``${?}`` and
``${$}`` stand for the bare character in policies that know variables.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

_TOKEN = re.compile(r"\$\{([*?$])\}|(.)", re.DOTALL)
_STAR = "*"
_ANY = "?"
_ESCAPE = "${"


class Globs:
    """Several patterns at once. Those without wildcards are one look-up."""

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
    """Where there are no wildcards: what the texts stand for."""
    return [_unescaped(text) if has_escapes else text for text in texts]


def _unescaped(text: str) -> str:
    if _ESCAPE not in text:
        return text
    return _TOKEN.sub(lambda match: match[1] or match[2], text)


# ── Matching ─────────────────────────────────────────────────────────────────────────────────


def matches(pattern: str, text: str, *, has_escapes: bool = False) -> bool:
    """Whether all of ``text`` matches ``pattern``."""
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
    """Part of a pattern between stars, with question marks in it."""

    size: int
    parts: tuple[tuple[int, str], ...]  # texts between question marks, each with its place

    def fits(self, text: str, at: int) -> bool:
        return all(text.startswith(part, at + place) for place, part in self.parts)

    def find(self, text: str, start: int, end: int) -> int:
        """The first place between ``start`` and ``end`` where the piece fits; -1: none."""
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
    """From the texts between question marks."""
    parts: list[tuple[int, str]] = []
    place = 0
    for text in texts:
        if text:
            parts.append((place, text))
        place += len(text) + 1
    return _Piece(place - 1, tuple(parts))
