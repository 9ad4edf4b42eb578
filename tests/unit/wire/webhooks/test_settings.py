"""Settings of webhooks: defaults, every error text, and secrets that stay hidden."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.webhooks.records import JSON

from penstock.wire.webhooks.settings import (
    InvalidSettings,
    Secret,
    Secrets,
    WebhookSettings,
    authorization,
    change,
    create,
    shown,
)
from penstock.wire.webhooks.standard import secret_text

RANDOM = bytes(range(32))
PEM = "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nZZ\n-----END PRIVATE KEY-----\n"


def made(**given_members: Any) -> tuple[WebhookSettings, Secrets]:
    return create(json.dumps(given_members).encode(), random=RANDOM)


def error_of(document: bytes) -> str:
    with pytest.raises(InvalidSettings) as caught:
        create(document, random=RANDOM)
    return str(caught.value)


def test_the_defaults() -> None:
    settings, secrets = made()
    assert shown(settings, secrets) == {
        "mode": "tap",
        "format": "raw",
        "method": "POST",
        "headers": {},
        "batch_max": 1,
        "batch_bytes_max": 262_144,
        "batch_wait_ms": 0,
        "retry": {
            "min_ms": 5_000,
            "max_ms": 3_600_000,
            "factor": 3.0,
            "attempts_max": 20,
            "age_ms_max": 259_200_000,
        },
        "on_outage": "hold",
        "guarantee": "at_least_once",
        "filter": "",
        "filter_scope": "MessageAttributes",
        "dead_letter": "",
        "auth": {"type": "none"},
        "ca": "",
        "concurrency": "auto",
        "rate_per_s": None,
        "timeout_ms": 15_000,
        "ordered": "none",
        "verify": "none",
        "auto_pause_ms": 0,
        "secret": "****",
    }
    assert secrets == Secrets(Secret(secret_text(RANDOM)))


FULL: dict[str, Any] = {
    "mode": "consume",
    "format": "cloudevents-structured",
    "method": "PUT",
    "headers": {"X-Team": "a b", "user-agent": "mine"},
    "batch_max": 1_000,
    "batch_bytes_max": 1_024,
    "batch_wait_ms": 10_000,
    "retry": {
        "min_ms": 100,
        "max_ms": 43_200_000,
        "factor": 1,
        "attempts_max": 1,
        "age_ms_max": 1_000,
    },
    "on_outage": "count",
    "guarantee": "at_most_once",
    "filter": '{"a": [1]}',
    "filter_scope": "MessageBody",
    "dead_letter": "arn:aws:sqs:eu-west-1:000000000000:dead.fifo",
    "auth": {"type": "header", "name": "X-Key", "value": "hidden"},
    "ca": PEM,
    "concurrency": 1_000,
    "rate_per_s": 0.5,
    "timeout_ms": 60_000,
    "ordered": "group",
    "verify": "cloudevents",
    "auto_pause_ms": 60_000,
    "secret": secret_text(b"x" * 24),
}


def test_every_setting_can_be_given_and_is_shown_without_its_secrets() -> None:
    settings, secrets = made(**FULL)
    found = shown(settings, secrets)
    assert found == {
        **FULL,
        "headers": {"x-team": "a b", "user-agent": "mine"},
        "retry": {**FULL["retry"], "factor": 1.0},
        "auth": {"type": "header", "name": "x-key", "value": "****"},
        "secret": "****",
    }
    assert set(found) == {*WebhookSettings.__struct_fields__, "secret"}
    # What is shown can be sent back.
    assert change(settings, secrets, json.dumps(found).encode()) == (settings, secrets)
    # Stored and read again.
    stored = msgspec.json.encode(settings)
    assert msgspec.json.decode(stored, type=WebhookSettings) == settings


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────

NUMBERS = {
    "batch_max": "a whole number from 1 to 1,000",
    "batch_bytes_max": "a whole number from 1,024 to 1,048,576",
    "batch_wait_ms": "a whole number from 0 to 10,000",
    "concurrency": "auto or a whole number from 1 to 1,000",
    "rate_per_s": "null or a number from 0.01 to 100,000",
    "timeout_ms": "a whole number from 1,000 to 60,000",
    "auto_pause_ms": "0 or a whole number from 60,000 to 2,592,000,000",
}
RETRY_NUMBERS = {
    "min_ms": "a whole number from 100 to 43,200,000",
    "max_ms": "a whole number from 100 to 43,200,000",
    "factor": "a number from 1 to 10",
    "attempts_max": "a whole number from 1 to 1,000",
    "age_ms_max": "a whole number from 1,000 to 2,592,000,000",
}
WRONG_NUMBERS = [
    ("-1", "-1"),
    ("1e10", "10000000000.0"),
    ('"x"', "'x'"),
    ("true", "true"),
    ("[1]", "a list"),
    ("{}", "an object"),
    ("9" * 300, "a number of more than 64 bits"),
]


@pytest.mark.parametrize(("value", "text"), WRONG_NUMBERS)
def test_numbers_outside_of_their_range_are_named(value: str, text: str) -> None:
    for name, range_ in NUMBERS.items():
        found = error_of(f'{{"{name}": {value}}}'.encode())
        assert found == f"{name} must be {range_}, not {text}."
    for name, range_ in RETRY_NUMBERS.items():
        found = error_of(f'{{"retry": {{"{name}": {value}}}}}'.encode())
        assert found == f"retry.{name} must be {range_}, not {text}."


CHOICES = {
    "format": "raw, sns, cloudevents-binary, cloudevents-structured, standard",
    "method": "POST, PUT",
    "on_outage": "hold, count",
    "guarantee": "at_least_once, at_most_once",
    "filter_scope": "MessageAttributes, MessageBody",
    "ordered": "none, group, key",
    "verify": "none, cloudevents",
}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('"Raw"', "'Raw'"),
        ("null", "null"),
        ("[]", "a list"),
        ('"' + "x" * 41 + '"', "a text of 41 characters"),
        ('"a\\nb\\u00e9"', r"'a\nb\xe9'"),
    ],
)
def test_another_choice_is_named(value: str, text: str) -> None:
    for name, choices in CHOICES.items():
        found = error_of(f'{{"{name}": {value}}}'.encode())
        assert found == f"{name} must be one of {choices}, not {text}."


NAMES = "1 to 128 letters, digits or !#$%&'*+-.^_`|~"
ASCII = "a text of printable ASCII characters without spaces around it"
SETTINGS = ", ".join(sorted(shown(*made())))


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (b"{", "The settings are not JSON."),
        (b"\xff", "The settings are not JSON."),
        (b"[" * 100_000, "The settings are not JSON."),
        (b"[]", "The settings must be a JSON object, not a list."),
        (b'{"url": 1}', f"The settings cannot have a member 'url'; allowed: {SETTINGS}."),
        (b'{"retry": null}', "retry must be a JSON object, not null."),
        (
            b'{"retry": {"jitter": 1}}',
            (
                "retry cannot have a member 'jitter'; allowed: age_ms_max, attempts_max, factor,"
                " max_ms, min_ms."
            ),
        ),
        (
            b'{"retry": {"min_ms": 7000, "max_ms": 6000}}',
            "retry.min_ms is 7,000, more than retry.max_ms, 6,000.",
        ),
        (b'{"mode": "move"}', "mode must be one of tap, consume, not 'move'."),
        (b'{"filter": {}}', "filter must be a text."),
        (
            b'{"filter": "%b"}' % (b"x" * 262_145),
            "filter must have at most 262,144 characters, not 262,145.",
        ),
        (b'{"dead_letter": "a b"}', "dead_letter must be the name or the ARN of a queue."),
        (b'{"dead_letter": "a:b:c"}', "dead_letter must be the name or the ARN of a queue."),
        (b'{"ca": "x"}', "ca must be certificates in PEM."),
        (
            b'{"format": "cloudevents-binary", "batch_max": 2}',
            (
                "A request in cloudevents-binary has one event: set batch_max to 1, or format to"
                " cloudevents-structured."
            ),
        ),
        # Headers.
        (b'{"headers": []}', "headers must be a JSON object of at most 20 members."),
        (
            json.dumps({"headers": {f"x{n}": "" for n in range(21)}}).encode(),
            "headers must be a JSON object of at most 20 members.",
        ),
        (b'{"headers": {"a b": ""}}', f"The name of a header must have {NAMES}, not 'a b'."),
        (b'{"headers": {"": ""}}', f"The name of a header must have {NAMES}, not ''."),
        (
            b'{"headers": {"%b": ""}}' % (b"x" * 129),
            f"The name of a header must have {NAMES}, not a text of 129 characters.",
        ),
        (
            b'{"headers": {"Host": "x"}}',
            "The name of a header cannot be host: the server sets this header.",
        ),
        (b'{"headers": {"x": 1}}', f"The value of the header x must be {ASCII}."),
        (b'{"headers": {"x": " a"}}', f"The value of the header x must be {ASCII}."),
        (b'{"headers": {"x": "1", "X": "2"}}', "The header x is given twice."),
        (
            b'{"headers": {"Authorization": "Bearer x"}}',
            "The header authorization would be shown to readers of the settings: set auth.",
        ),
        (
            b'{"headers": {"content-type": "a/b"}, "format": "standard"}',
            "The header content-type can be set only for the formats raw and sns with batch_max 1.",
        ),
        (
            b'{"headers": {"content-type": "a/b"}, "batch_max": 2}',
            "The header content-type can be set only for the formats raw and sns with batch_max 1.",
        ),
        (
            b'{"headers": {"x": "%b"}, "auth": {"type": "bearer", "token": "%b"}}'
            % (b"x" * 3_000, b"y" * 1_068),
            "The headers have 4,097 bytes with auth; 4,096 are allowed.",
        ),
        # Authentication.
        (b'{"auth": "basic"}', "auth must be a JSON object, not a text."),
        (
            b'{"auth": {"type": "digest"}}',
            "auth.type must be one of none, basic, bearer, header, certificate, not 'digest'.",
        ),
        (b'{"auth": {"type": "basic", "user": "a"}}', "auth of type basic needs auth.password."),
        (
            b'{"auth": {"type": "bearer", "token": "****"}}',
            "auth of type bearer needs auth.token.",
        ),
        (
            b'{"auth": {"type": "bearer", "user": "a"}}',
            "auth of type bearer cannot have a member user.",
        ),
        (
            b'{"auth": {"type": "basic", "password": "a"}}',
            "auth.user must not be empty.",
        ),
        (
            b'{"auth": {"type": "basic", "user": "a:b", "password": "c"}}',
            "auth.user must be a text without colons and control characters.",
        ),
        (
            b'{"auth": {"type": "basic", "user": "a", "password": ""}}',
            "auth.password must not be empty.",
        ),
        (
            b'{"auth": {"type": "basic", "user": "a", "password": "SECRET\\n"}}',
            "auth.password must be a text without control characters.",
        ),
        (
            b'{"auth": {"type": "bearer", "token": "SECRET SECRET"}}',
            "auth.token must be a text of printable ASCII characters without spaces.",
        ),
        (b'{"auth": {"type": "bearer", "token": 123456}}', "auth.token must be a text."),
        (
            b'{"auth": {"type": "header", "name": "x", "value": "SECRET\\r\\nh: v"}}',
            f"auth.value must be {ASCII}.",
        ),
        (
            b'{"auth": {"type": "header", "name": "webhook-id", "value": "v"}}',
            "auth.name cannot be webhook-id: the server sets this header.",
        ),
        (
            b'{"auth": {"type": "header", "name": "x", "value": "v"}, "headers": {"X": "w"}}',
            "auth cannot use the header x, which is set already.",
        ),
        (
            b'{"auth": {"type": "header", "name": "Content-Type", "value": "v"}}',
            "auth cannot use the header content-type, which is set already.",
        ),
        (
            json.dumps({"auth": {"type": "certificate", "certificate": "x", "key": KEY}}).encode(),
            "auth.certificate must be a certificate in PEM.",
        ),
        (
            json.dumps(
                {"auth": {"type": "certificate", "certificate": PEM, "key": "SECRET"}}
            ).encode(),
            "auth.key must be a private key in PEM.",
        ),
        (
            b'{"secret": "whsec_SECRET"}',
            "secret must be whsec_ and the base64 of 24 to 64 bytes.",
        ),
        (b'{"secret": null}', "secret must be whsec_ and the base64 of 24 to 64 bytes."),
    ],
)
def test_the_text_of_each_error(document: bytes, text: str) -> None:
    assert error_of(document) == text
    assert "SECRET" not in text
    assert "123456" not in text


@pytest.mark.parametrize(
    "name",
    [
        *("host", "Content-Length", "TRANSFER-ENCODING", "connection", "expect", "te", "upgrade"),
        *("x-amz-sns-message-type", "X-Amz-Date", "webhook-id", "Webhook-Signature", "ce-id"),
        *("CE-type", "x-penstock-test", "accept-encoding", "trailer", "proxy-authorization"),
    ],
)
def test_headers_that_the_server_sets_are_forbidden(name: str) -> None:
    found = error_of(json.dumps({"headers": {name: "x"}}).encode())
    assert found.endswith(f"cannot be {name.lower()}: the server sets this header.")


@given(st.characters(), st.sampled_from(["{}a", "a{}b"]))
def test_a_header_has_no_control_characters(char: str, form: str) -> None:
    text = form.format(char)
    document = json.dumps({"headers": {"x": text}}).encode()
    if "!" <= char <= "~" or (char == " " and form == "a{}b"):
        assert create(document, random=RANDOM)[0].headers == {"x": text}
    else:
        assert error_of(document)


@given(st.dictionaries(st.sampled_from([*FULL, "x"]), JSON, max_size=4))
def test_any_json_is_valid_settings_or_an_error(document: dict[str, Any]) -> None:
    try:
        settings, secrets = made(**document)
    except InvalidSettings:
        return
    assert msgspec.convert(msgspec.to_builtins(settings), WebhookSettings) == settings
    assert change(settings, secrets, b"{}") == (settings, secrets)


# ── Changes and secrets ──────────────────────────────────────────────────────────────────────────


def test_a_change_keeps_what_it_does_not_name() -> None:
    before, secrets = made(**FULL)
    after, kept = change(before, secrets, b'{"batch_max": 5, "retry": {"attempts_max": 9}}')
    assert after == msgspec.structs.replace(
        before, batch_max=5, retry=msgspec.structs.replace(before.retry, attempts_max=9)
    )
    assert kept == secrets


def test_a_hidden_secret_is_kept_and_another_type_needs_its_own() -> None:
    basic, secrets = made(auth={"type": "basic", "user": "ann", "password": "pw"})
    for document in (
        b'{"auth": {"user": "bob"}}',
        b'{"auth": {"type": "basic", "user": "bob", "password": "****"}}',
    ):
        settings, kept = change(basic, secrets, document)
        assert authorization(settings.auth, kept.auth) == ("authorization", "Basic Ym9iOnB3")
    with pytest.raises(InvalidSettings, match=r"auth of type bearer needs auth\.token\."):
        change(basic, secrets, b'{"auth": {"type": "bearer"}}')
    settings, kept = change(basic, secrets, b'{"auth": {"type": "none"}}')
    assert (settings.auth.type, kept.auth) == ("none", None)
    assert authorization(settings.auth, kept.auth) is None


@pytest.mark.parametrize(
    ("auth", "header"),
    [
        ({"type": "basic", "user": "é", "password": "p:"}, ("authorization", "Basic w6k6cDo=")),
        ({"type": "bearer", "token": "t.t"}, ("authorization", "Bearer t.t")),
        ({"type": "header", "name": "X-Key", "value": "a b"}, ("x-key", "a b")),
        ({"type": "certificate", "certificate": PEM, "key": KEY}, None),
    ],
)
def test_the_header_of_each_type_of_authentication(auth: Any, header: Any) -> None:
    settings, secrets = made(auth=auth)
    assert authorization(settings.auth, secrets.auth) == header
    hidden = {"password", "token", "value", "key"} & set(auth)
    found = shown(settings, secrets)["auth"]
    assert {found[name] for name in hidden} == {"****"}


def test_secrets_are_in_no_output() -> None:
    settings, secrets = made(
        auth={"type": "bearer", "token": "SECRET"}, secret=secret_text(b"S" * 32)
    )
    secrets = secrets.rotated(random=b"R" * 32, now_ms=0)
    texts = [
        repr(secrets),
        str(secrets),
        f"{secrets.auth}",
        repr(settings),
        json.dumps(shown(settings, secrets)),
        msgspec.json.encode(settings).decode(),
    ]
    for hidden in ("SECRET", secret_text(b"S" * 32), secret_text(b"R" * 32)):
        assert not any(hidden in text for text in texts)
        assert hidden.encode() in secrets.pack()
    assert texts[0].count("****") == 3
    for encode in (msgspec.json.encode, msgspec.msgpack.encode, msgspec.to_builtins):
        with pytest.raises(TypeError):
            encode(secrets)
    assert Secrets.unpack(secrets.pack()) == secrets
    assert Secrets.unpack(Secrets(Secret("a")).pack()) == Secrets(Secret("a"))


def test_a_rotation_signs_with_both_secrets_for_a_day() -> None:
    day_ms = 86_400_000
    secrets = Secrets(Secret(secret_text(b"1" * 32)))
    assert secrets.signing_at(0) == (secret_text(b"1" * 32),)
    rotated = secrets.rotated(random=b"2" * 32, now_ms=1_000)
    both = (secret_text(b"2" * 32), secret_text(b"1" * 32))
    assert rotated.signing_at(1_000) == rotated.signing_at(1_000 + day_ms - 1) == both
    assert rotated.signing_at(1_000 + day_ms) == both[:1]
    # A secret that is given takes effect at once.
    document = json.dumps({"secret": secret_text(b"3" * 32)}).encode()
    _, replaced = change(WebhookSettings(), rotated, document)
    assert replaced.signing_at(1_000) == (secret_text(b"3" * 32),)
