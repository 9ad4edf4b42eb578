"""Secrets in text that leaves the machine."""

import json
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.cli.clients import contexts
from penstock.cli.operate.debug import MASK, Mask
from penstock.metadata.security.identity_entries import new_secret

SECRET = "k9-_Zq" + "x" * 34


@pytest.mark.parametrize(
    "text",
    [
        f'{{"secret": "{SECRET}"}}',
        f'{{"key_id": "K", "SecretAccessKey" : "{SECRET}"}}',
        json.dumps({"body": json.dumps({"password": SECRET})}),
        f"secret={SECRET}&x=1",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"penstock.token: {SECRET}",
        f'password="{SECRET}"',
        f"authorization: Bearer {SECRET}",
        f"curl -H 'Authorization: Basic {SECRET}'",
        f"http://ann:{SECRET}@example.org/",
        f"psat1.{SECRET}.{SECRET}",
        f"sasl.jaas.config=Module required password='{SECRET}';",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n",
        f"-----BEGIN EC PRIVATE KEY-----\\n{SECRET}\\n-----END EC PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}",
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str) -> None:
    masked = Mask().text(text)
    assert SECRET not in masked
    assert MASK in masked


@given(entropy=st.binary(min_size=30, max_size=30))
def test_the_secret_of_an_access_key_is_hidden_even_without_a_name(entropy: bytes) -> None:
    secret = new_secret(entropy)
    assume(any(map(str.isupper, secret)) and any(map(str.islower, secret)))  # as all but 1e-9 have
    assert secret not in Mask().text(f"the first key is K {secret}, shown once")


def test_what_is_no_secret_stays() -> None:
    text = (
        '{"event": "leader elected", "topic": "jobs", "node": 1}\n'
        'penstock_queue_messages{state="visible"} 12\n'
        "commit 0123456789abcdef0123456789abcdef01234567\n"
        "arn:aws:sqs:us-east-1:000000000000:a-queue-with-a-rather-long-name-for-its-use\n"
    )
    assert Mask().text(text) == text


@given(secret=st.text(min_size=6, max_size=40))
def test_a_known_secret_is_hidden_in_every_form(secret: str) -> None:
    mask = Mask([secret])
    forms = (secret, json.dumps(secret)[1:-1], quote(secret, safe=""))
    text = " ".join(forms)
    assert all(form not in mask.text(text) or form in MASK for form in forms)


def test_secrets_of_this_machine_are_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("token in a file\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_SECRET", "plain words 1")
    monkeypatch.setenv("MY_PASSWORD", "plain words 2")
    monkeypatch.setenv("PENSTOCK_ADMIN__TOKEN_FILE", str(file))
    saved = {"key_id": "K", "secret": "plain words 3"}
    contexts.Contexts("default", {"prod": saved}).write()
    masked = Mask.of_this_machine().text(
        "plain words 1, plain words 2, plain words 3, token in a file"
    )
    assert masked == ", ".join([MASK] * 4)


@pytest.mark.slow
def test_a_long_line_takes_no_time() -> None:
    """A pattern that goes back and forth would take minutes."""
    begun = time.thread_time()
    for letter in ("a", "-", "A1a", '"', "secret"):
        Mask(["some secret"]).text(letter * (200_000 // len(letter)))
    assert time.thread_time() - begun < 4.0
