"""Character classes of RE2 (Perl, POSIX, Unicode) and case folding, as tests of one character.

Topic names are ASCII; transactional ids may have any character. The script of a character outside
ASCII (``\\p{Greek}``) is taken from its Unicode name, since Python has no table of scripts."""

import unicodedata
from collections.abc import Callable
from typing import TypeAlias

Test: TypeAlias = Callable[[str], bool]
Ranges: TypeAlias = tuple[tuple[str, str], ...]

_DIGIT: Ranges = (("0", "9"),)
_UPPER: Ranges = (("A", "Z"),)
_LOWER: Ranges = (("a", "z"),)
_WORD: Ranges = (*_DIGIT, *_UPPER, *_LOWER, ("_", "_"))

PERL: dict[str, Ranges] = {
    "d": _DIGIT,
    "w": _WORD,
    "s": (("\t", "\n"), ("\f", "\r"), (" ", " ")),
}
POSIX: dict[str, Ranges] = {
    "alnum": (*_DIGIT, *_UPPER, *_LOWER),
    "alpha": (*_UPPER, *_LOWER),
    "ascii": (("\0", "\x7f"),),
    "blank": (("\t", "\t"), (" ", " ")),
    "cntrl": (("\0", "\x1f"), ("\x7f", "\x7f")),
    "digit": _DIGIT,
    "graph": (("!", "~"),),
    "lower": _LOWER,
    "print": ((" ", "~"),),
    "punct": (("!", "/"), (":", "@"), ("[", "`"), ("{", "~")),
    "space": (("\t", "\r"), (" ", " ")),
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": (*_DIGIT, ("A", "F"), ("a", "f")),
}
_CATEGORY_NAMES = (
    "L Lu Ll Lt Lm Lo M Mn Me Mc N Nd Nl No P Pd Ps Pe Pc Po Pi Pf S Sm Sc Sk So Z Zs Zl Zp"
    " C Cc Cf Co Cs"
)
_SCRIPT_NAMES = (
    "Arabic Armenian Avestan Balinese Bamum Batak Bengali Bopomofo Brahmi Braille Buginese Buhid"
    " Canadian_Aboriginal Carian Cham Cherokee Common Coptic Cuneiform Cypriot Cyrillic Deseret"
    " Devanagari Egyptian_Hieroglyphs Ethiopic Georgian Glagolitic Gothic Greek Gujarati Gurmukhi"
    " Han Hangul Hanunoo Hebrew Hiragana Imperial_Aramaic Inherited Inscriptional_Pahlavi"
    " Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kayah_Li Kharoshthi Khmer Lao Latin"
    " Lepcha Limbu Linear_B Lisu Lycian Lydian Malayalam Mandaic Meetei_Mayek Mongolian Myanmar"
    " New_Tai_Lue Nko Ogham Ol_Chiki Old_Italic Old_Persian Old_South_Arabian Old_Turkic Oriya"
    " Osmanya Phags_Pa Phoenician Rejang Runic Samaritan Saurashtra Shavian Sinhala Sundanese"
    " Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Tamil Telugu Thaana Thai"
    " Tibetan Tifinagh Ugaritic Vai Yi"
)
_CATEGORIES = frozenset(_CATEGORY_NAMES.split())
_SCRIPTS = frozenset(_SCRIPT_NAMES.split())
_NAMED_OTHERWISE = {"Han": "CJK", "Canadian_Aboriginal": "CANADIAN SYLLABICS"}
# Further characters that fold to an ASCII letter or to å.
_MORE_CASES = {"k": "\u212a", "s": "\u017f", "\u00e5": "\u212b"}


def is_word(character: str) -> bool:
    return character == "_" or (character.isascii() and character.isalnum())


def literal(character: str, *, is_folded: bool) -> Test:
    if not is_folded:
        return character.__eq__
    folded = _fold(character)
    return lambda c: _fold(c) == folded


def in_ranges(ranges: Ranges, *, is_folded: bool, is_negated: bool = False) -> Test:
    def test(character: str) -> bool:
        cases = _cases(character) if is_folded else (character,)
        is_in = any(low <= c <= high for c in cases for low, high in ranges)
        return is_in is not is_negated

    return test


def unicode_class(name: str, *, is_folded: bool, is_negated: bool) -> Test | None:
    """Return the test for ``\\p{name}``, or None if no category or script has that name."""
    if name == "Any":
        return lambda _: not is_negated
    if name not in _CATEGORIES and name not in _SCRIPTS:
        return None
    test = _category(name) if name in _CATEGORIES else _script(name)
    if is_folded:
        return lambda c: any(map(test, _cases(c))) is not is_negated
    return lambda c: test(c) is not is_negated


def any_of(tests: list[Test], *, is_negated: bool) -> Test:
    return lambda c: any(test(c) for test in tests) is not is_negated


def _category(name: str) -> Test:
    return lambda c: (found := unicodedata.category(c)).startswith(name) and found != "Cn"


def _script(name: str) -> Test:
    if name == "Common":
        return lambda c: not c.isalpha() and not unicodedata.combining(c)
    if name == "Inherited":
        return lambda c: unicodedata.combining(c) > 0
    prefix = _NAMED_OTHERWISE.get(name, name.upper().replace("_", " ")) + " "
    return lambda c: c.isalpha() and unicodedata.name(c, "").startswith(prefix)


def _fold(character: str) -> str:
    folded = character.casefold()
    if len(folded) == 1:
        return folded
    lower = character.lower()
    return lower if len(lower) == 1 else character


def _cases(character: str) -> set[str]:
    folded = _fold(character)
    cases = {character, folded, folded.upper(), folded.title(), _MORE_CASES.get(folded, folded)}
    return {case for case in cases if len(case) == 1}
