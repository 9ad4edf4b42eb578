"""The settings that say where messages to phones, mobile apps and mailboxes go. Pure."""

import re
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from penstock.wire.webhooks.endpoint_url import EndpointUrl, UrlInvalid, parse_endpoint_url

MAIL_PROTOCOLS: Final = ("email", "email-json")
PROTOCOLS: Final = ("application", "firehose", "lambda", "sms", *MAIL_PROTOCOLS)

_PORTS: Final = {"smtp": 25, "smtps": 465}
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_GATEWAY = re.compile(rf"(?:^|,)\s*({'|'.join(PROTOCOLS)})=")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def parse_gateways(text: str) -> dict[str, EndpointUrl]:
    """Return the gateways of ``push.gateways`` (``sms=URL,application=URL``) by protocol. Raises
    UrlInvalid."""
    parts = _GATEWAY.split(text.strip())  # the text before the first name, then names and URLs
    names, urls = parts[1::2], parts[2::2]
    if parts[0] or len(set(names)) < len(names):
        raise UrlInvalid(
            "expected protocol=URL,protocol=URL, with each protocol once; protocols:"
            f" {', '.join(PROTOCOLS)}"
        )
    return {name: parse_endpoint_url(url.strip()) for name, url in zip(names, urls, strict=True)}


class MailServer(msgspec.Struct, frozen=True):
    host: str
    port: int
    is_tls: bool  # from the first byte; otherwise TLS begins after STARTTLS, if it is offered
    user: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"MailServer({self.host}:{self.port})"

    @property
    def is_local(self) -> bool:
        return self.host in _LOOPBACK


def parse_smtp_url(text: str) -> MailServer:
    """Return the mail server of ``push.smtp_url``. Raises UrlInvalid."""
    form = "expected smtp://user:password@host:port or smtps://user:password@host:port"
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise UrlInvalid(form) from None
    if url.scheme not in _PORTS or not url.hostname or url.path not in ("", "/") or url.query:
        raise UrlInvalid(form)
    user, password = unquote(url.username or ""), unquote(url.password or "")
    if _CONTROL.search(url.hostname + user + password) or bool(user) != bool(password):
        raise UrlInvalid(f"{form}, with both a user and a password, or neither")
    is_tls = url.scheme == "smtps"
    return MailServer(url.hostname, port or _PORTS[url.scheme], is_tls, user, password)
