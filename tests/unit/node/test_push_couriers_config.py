"""Settings of gateways, outbox and mail server."""

import pytest
from tests.unit.node.test_push_config import loaded, refused

from penstock.node.configuration.config import ConfigInvalid, load
from penstock.node.configuration.settings import MASK, describe


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("gateways", "http://a", "expected protocol=URL"),
        ("gateways", "fax=http://a", "expected protocol=URL"),
        ("gateways", "sms=a", "must begin with http"),
        ("outbox", "maybe", "outbox"),
        ("smtp_url", "mail.example", "expected smtp://"),
        ("smtp_url", "smtp://user@mail.example", "both a user and a password"),
        ("mail_from", "Ann <a@b>", "expected a mail address"),
    ],
)
def test_a_bad_value_gets_an_error_of_one_line(name: str, value: object, reason: str) -> None:
    assert reason in refused(name, value)


def test_a_mail_server_needs_a_sender() -> None:
    with pytest.raises(ConfigInvalid, match=r"push\.mail_from"):
        loaded(smtp_url="smtp://mail.example")
    assert loaded(smtp_url="smtp://mail.example", mail_from="sns@example.com").mail_from


@pytest.mark.parametrize(
    ("setting", "in_dev", "elsewhere"),
    [("auto", True, False), ("on", True, True), ("off", False, False)],
)
def test_where_there_is_an_outbox(setting: str, in_dev: bool, elsewhere: bool) -> None:
    made = loaded(outbox=setting)
    assert made.has_outbox(is_dev=True) is in_dev
    assert made.has_outbox(is_dev=False) is elsewhere


def test_passwords_are_not_shown() -> None:
    given = {
        "push.gateways": "sms=http://me:geheim@a/",
        "push.smtp_url": "smtp://me:geheim@a",
        "push.mail_from": "a@b",
    }
    shown = {row.key: row.value for row in describe(load(given, {}))}
    assert shown["push.gateways"] == shown["push.smtp_url"] == MASK
    assert "geheim" not in refused("gateways", "sms=http://me:geheim@a:x/")
    assert "geheim" not in refused("smtp_url", "http://me:geheim@a")
