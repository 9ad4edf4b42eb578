"""Settings of gateways and mail servers."""

import pytest

from penstock.wire.webhooks.courier_urls import (
    PROTOCOLS,
    MailServer,
    parse_gateways,
    parse_smtp_url,
)
from penstock.wire.webhooks.endpoint_url import UrlInvalid


def test_settings_of_gateways() -> None:
    assert parse_gateways("") == {}
    found = parse_gateways(" sms=http://a/?x=1,2&y=sms , application=https://b:8443/p")
    assert {name: url.shown for name, url in found.items()} == {
        "sms": "http://a/?x=1,2&y=sms",
        "application": "https://b:8443/p",
    }
    every = ",".join(f"{name}=http://h/{name}" for name in PROTOCOLS)
    assert parse_gateways(every).keys() == set(PROTOCOLS)


@pytest.mark.parametrize(
    "text", ["http://a", "fax=http://a", "sms", "sms=", "sms=ftp://a", "sms=http://a,sms=http://b"]
)
def test_bad_settings_of_gateways(text: str) -> None:
    with pytest.raises(UrlInvalid):
        parse_gateways(text)


def test_urls_of_mail_servers() -> None:
    assert parse_smtp_url("smtp://mail.example") == MailServer("mail.example", 25, is_tls=False)
    found = parse_smtp_url("smtps://u%40x:p%2F@mail.example:4650/")
    assert found == MailServer("mail.example", 4_650, is_tls=True, user="u@x", password="p/")
    assert "p/" not in repr(found)


@pytest.mark.parametrize(
    "text",
    ["", "mail.example", "http://mail.example", "smtp://", "smtp://h:x", "smtp://h:70000",
     "smtp://h/path", "smtp://h?a=b", "smtp://user@h", "smtp://:p@h", "smtp://u:p%0A@h"],
)  # fmt: skip
def test_other_urls_are_rejected(text: str) -> None:
    with pytest.raises(UrlInvalid, match="expected smtp://"):
        parse_smtp_url(text)
