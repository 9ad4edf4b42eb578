"""Settings of push: how SNS topics send to queues, and which endpoints subscriptions may call."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

from penstock.model import limits
from penstock.node.configuration.settings import Section, option, path_option
from penstock.push.address_guard import PORTS, Rules, parse_rules
from penstock.wire.aws.sns.book_rules import is_mail_address
from penstock.wire.webhooks.courier_urls import parse_gateways, parse_smtp_url
from penstock.wire.webhooks.endpoint_url import UrlInvalid, parse_endpoint_url

TEXT_CHARS_MAX: Final = 65_536
DAY_MS: Final = 24 * 60 * limits.MINUTE_MS


class QueuePolicy(StrEnum):
    AUTO = "auto"
    REQUIRE = "require"
    IGNORE = "ignore"


class OutboxUse(StrEnum):
    AUTO = "auto"
    ON = "on"
    OFF = "off"


def _split(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _parse_ports(text: str) -> Sequence[tuple[int, int]]:
    ranges = []
    for entry in _split(text):
        first, dash, last = entry.partition("-")
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdigit() and len(end) <= 5 for end in ends):
            raise ValueError("expected ports and ranges such as 443,8000-8999")
        low, high = map(int, ends)
        if not 1 <= low <= high <= 65_535:
            raise ValueError("expected ports from 1 to 65535, the lower end of a range first")
        ranges.append((low, high))
    if not ranges:
        raise ValueError("expected at least one port")
    return tuple(ranges)


def _checked_by(parse: Callable[[str], object]) -> Callable[[str], str | None]:
    def check(text: str) -> str | None:
        try:
            parse(text)
        except ValueError as error:
            return str(error)
        return None

    return check


def _parse_rules(text: str) -> Rules:
    return parse_rules(_split(text))


def _check_url(text: str, *, schemes: Sequence[str], expected: str) -> str | None:
    if not text:
        return None
    try:
        url = parse_endpoint_url(text)
    except UrlInvalid as error:
        return str(error)
    is_known = ("https" if url.is_tls else "http") in schemes
    return None if is_known and url.target == "/" else f"expected {expected}"


def _check_proxy(text: str) -> str | None:
    expected = "http://host:port or http://user:password@host:port"
    return _check_url(text, schemes=("http",), expected=expected)


def _check_cert_url(text: str) -> str | None:
    if text.endswith("/"):
        return "expected a URL without a slash at its end"
    return _check_url(text, schemes=("http", "https"), expected="https://host")


def _check_mail_from(text: str) -> str | None:
    is_valid = not text or is_mail_address(text)
    return None if is_valid else "expected a mail address, such as sns@example.com"


_check_smtp_url = _checked_by(parse_smtp_url)


class PushConfig(Section):
    enabled: bool = option(
        True,
        "Push messages of SNS topics to their subscriptions. With false, published messages stay in"
        " their topics until a node is started with true.",
    )
    publish_wait_ms: int = option(
        250,
        "Maximum time that Publish waits until the message is in the subscribed queues; the message"
        " reaches slower queues later. 0: no wait.",
        between=(0, limits.MINUTE_MS),
    )
    queue_policy: QueuePolicy = option(
        QueuePolicy.AUTO,
        "Whether the policy of a queue must allow an SNS topic to send: require, ignore, or auto ="
        " require with authentication on, ignore with authentication off.",
    )
    retention_ms: int = option(
        7 * DAY_MS,
        "Default retention of new SNS topics. A subscription that lags behind for longer loses"
        " messages.",
        ge=limits.MINUTE_MS,
    )
    deliveries_retention_ms: int = option(
        7 * DAY_MS, "Retention of the topic __deliveries.", ge=limits.MINUTE_MS
    )
    cert_url: str = option(
        "",
        "Beginning of the URL of signing certificates in notifications, such as"
        " https://sns.eu-west-1.amazonaws.com for clients that accept no other host; empty:"
        " http.external_url, or the address of this endpoint.",
        check=_check_cert_url,
    )
    in_flight_max: int = option(
        2_000,
        "Maximum number of requests to endpoints in flight, of this node.",
        between=(1, 100_000),
    )
    bytes_in_flight_max: int = option(
        64 * limits.MIB,
        "Maximum size of the bodies of all requests in flight together, of this node.",
        between=(limits.MIB, 4_096 * limits.MIB),
    )
    host_in_flight_max: int = option(
        256,
        "Maximum number of requests in flight to one scheme, host and port, of this node.",
        between=(1, 100_000),
    )
    timeout_ms: int = option(
        15_000,
        "Timeout of a request to an endpoint: name lookup, connection, TLS and reply together.",
        between=(1_000, limits.MINUTE_MS),
    )
    allow: str = option(
        "",
        "Networks and host suffixes that subscriptions may call although they are not public,"
        " separated by commas, such as 10.1.0.0/16,hooks.internal. In mode dev, loopback and"
        " private addresses are allowed too.",
        check=_checked_by(_parse_rules),
        max_length=TEXT_CHARS_MAX,
    )
    deny: str = option(
        "",
        "Networks and host suffixes that subscriptions must not call, separated by commas; stronger"
        " than allow.",
        check=_checked_by(_parse_rules),
        max_length=TEXT_CHARS_MAX,
    )
    ports: str = option(
        ",".join(str(low) if low == high else f"{low}-{high}" for low, high in PORTS),
        "Ports that subscriptions may call, separated by commas.",
        check=_checked_by(_parse_ports),
        max_length=TEXT_CHARS_MAX,
    )
    plain_http: bool = option(True, "Allow endpoints with http, whose messages are not encrypted.")
    proxy_url: str = option(
        "",
        "HTTP proxy for all requests to endpoints, http://host:port or"
        " http://user:password@host:port; empty: none. Use proxy_url_file to keep a password out"
        " of this file.",
        is_secret=True,
        check=_check_proxy,
    )
    ca_file: str = path_option(
        "File with certificates of CAs, PEM, that endpoints may use besides those of the system."
    )

    gateways: str = option(
        "",
        "HTTP gateways that deliver messages to phones, mobile apps, functions and streams, such as"
        " sms=http://10.1.0.7/sms,application=https://push.internal/. Each message is the POST of a"
        " CloudEvent. Use gateways_file to keep a password out of this file.",
        is_secret=True,
        check=_checked_by(parse_gateways),
        max_length=TEXT_CHARS_MAX,
    )
    outbox: OutboxUse = option(
        OutboxUse.AUTO,
        "Write messages to phones, mobile apps, mailboxes, functions and streams that have neither"
        " gateway nor mail server to the topic __outbox: on, off, or auto = on in mode dev.",
    )
    smtp_url: str = option(
        "",
        "Mail server for subscriptions with the protocols email and email-json,"
        " smtp://user:password@host:port or smtps://...; empty: none. Use smtp_url_file to keep a"
        " password out of this file.",
        is_secret=True,
        check=lambda text: _check_smtp_url(text) if text else None,
    )
    mail_from: str = option(
        "",
        "Mail address of the sender, required with smtp_url.",
        check=_check_mail_from,
    )

    @property
    def allow_rules(self) -> Rules:
        return _parse_rules(self.allow)

    @property
    def deny_rules(self) -> Rules:
        return _parse_rules(self.deny)

    @property
    def port_ranges(self) -> Sequence[tuple[int, int]]:
        return _parse_ports(self.ports)

    def has_outbox(self, *, is_dev: bool) -> bool:
        return is_dev if self.outbox is OutboxUse.AUTO else self.outbox is OutboxUse.ON

    def is_policy_required(self, *, is_auth_on: bool) -> bool:
        """Return whether the policy of a queue must allow an SNS topic to send."""
        if self.queue_policy is QueuePolicy.AUTO:
            return is_auth_on
        return self.queue_policy is QueuePolicy.REQUIRE
