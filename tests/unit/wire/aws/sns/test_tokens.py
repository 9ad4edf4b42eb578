import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidRequest
from penstock.model.limits import CONFIRMATION_MS
from penstock.model.names import uuid_text
from penstock.wire.aws.sns.tokens import Token, make_token, read_token

KEY, NOW_MS = b"k" * 32, 1_700_000_000_000
TOKEN = Token(uuid_text(bytes(range(16))), "eu-central-1")

tokens = st.builds(
    Token,
    st.binary(min_size=16, max_size=16).map(uuid_text),
    st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=32),
)


@given(tokens, st.binary(min_size=1, max_size=64), st.integers(0, 2**62))
def test_a_token_is_read_back_for_48_hours(token: Token, key: bytes, now_ms: int) -> None:
    text = make_token(key, token, now_ms=now_ms)
    assert re.fullmatch(r"[0-9a-f]{288}", text)
    assert read_token(key, text, now_ms=now_ms) == token
    assert read_token(key, text, now_ms=now_ms + CONFIRMATION_MS - 1) == token
    with pytest.raises(InvalidRequest, match=r"^Invalid parameter: Token$"):
        read_token(key, text, now_ms=now_ms + CONFIRMATION_MS)


@given(st.integers(0, 287), st.integers(1, 15))
def test_no_digit_can_be_changed(at: int, by: int) -> None:
    text = make_token(KEY, TOKEN, now_ms=NOW_MS)
    forged = text[:at] + f"{int(text[at], 16) ^ by:x}" + text[at + 1 :]
    with pytest.raises(InvalidRequest):
        read_token(KEY, forged, now_ms=NOW_MS)


@given(st.text(max_size=300) | st.text("0123456789abcdef", min_size=288, max_size=288))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^Invalid parameter: Token$"):
        read_token(KEY, text, now_ms=NOW_MS)


def test_a_token_has_one_spelling_and_one_key() -> None:
    text = make_token(KEY, TOKEN, now_ms=NOW_MS)
    for wrong in (text.upper(), text + "\n", text[:-2], text + "00", text[:-1] + " ", " " + text):
        with pytest.raises(InvalidRequest):
            read_token(KEY, wrong, now_ms=NOW_MS)
    with pytest.raises(InvalidRequest):
        read_token(b"x" * 32, text, now_ms=NOW_MS)
