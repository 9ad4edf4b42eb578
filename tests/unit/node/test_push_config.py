"""Settings of push: each bad value gets an error of one line, and each good one is parsed."""

import ipaddress

import pytest

from penstock.node.configuration.config import Config, ConfigInvalid, load
from penstock.node.configuration.push_config import PushConfig, QueuePolicy
from penstock.node.configuration.settings import MASK, describe
from penstock.push.address_guard import PORTS


def loaded(**settings: object) -> PushConfig:
    return load({f"push.{name}": value for name, value in settings.items()}, {}).config.push


def refused(name: str, value: object) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        loaded(**{name: value})
    text = str(caught.value)
    assert "\n" not in text
    assert f"push.{name}" in text
    return text


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("publish_wait_ms", -1, ">= 0"),
        ("publish_wait_ms", 60_001, "<= 60000"),
        ("retention_ms", 59_999, ">= 60000"),
        ("in_flight_max", 0, ">= 1"),
        ("bytes_in_flight_max", 1_023, ">= 1048576"),
        ("host_in_flight_max", 0, ">= 1"),
        ("timeout_ms", 999, ">= 1000"),
        ("timeout_ms", 60_001, "<= 60000"),
        ("queue_policy", "maybe", "queue_policy"),
        ("cert_url", "sns.eu-west-1.amazonaws.com", "http"),
        ("cert_url", "ftp://a", "http"),
        ("cert_url", "https://a/", "without a slash"),
        ("cert_url", "https://a/path", "expected https://host"),
        ("allow", "10.0.0.1/8", "10.0.0.1/8"),  # host bits: a typing error
        ("allow", "10.0.0.0/33", "10.0.0.0/33"),
        ("allow", "a,...", "neither a network nor a host suffix"),
        ("deny", "fe80::/129", "fe80::/129"),
        ("ports", "", "at least one port"),
        ("ports", "https", "such as 443,8000-8999"),
        ("ports", "0", "from 1 to 65535"),
        ("ports", "65536", "from 1 to 65535"),
        ("ports", "9-8", "lower end"),
        ("ports", "1-2-3", "such as"),
        ("ports", "٣", "such as"),
        ("proxy_url", "proxy:3128", "http"),
        ("proxy_url", "https://proxy:3128", "expected http://host:port"),
        ("proxy_url", "http://proxy:3128/path", "expected http://host:port"),
    ],
)
def test_a_bad_value_gets_an_error_of_one_line(name: str, value: object, reason: str) -> None:
    assert reason in refused(name, value)


def test_the_password_of_a_proxy_is_not_shown() -> None:
    assert "geheim" not in refused("proxy_url", "https://me:geheim@proxy:1")
    rows = describe(load({"push.proxy_url": "http://me:geheim@proxy:1"}, {}))
    assert [row.value for row in rows if row.key == "push.proxy_url"] == [MASK]


def test_networks_hosts_and_ports_are_parsed() -> None:
    made = loaded(allow=" 10.1.0.0/16, hooks.internal,", deny="::1", ports="443, 8000-8999")
    assert made.allow_rules.networks == (ipaddress.ip_network("10.1.0.0/16"),)
    assert made.allow_rules.suffixes == ("hooks.internal",)
    assert made.deny_rules.networks == (ipaddress.ip_network("::1"),)
    assert made.port_ranges == ((443, 443), (8_000, 8_999))


def test_the_defaults_are_those_of_the_guard() -> None:
    made = Config().push
    assert made.port_ranges == PORTS
    assert not made.allow_rules.networks
    assert not made.deny_rules.suffixes


@pytest.mark.parametrize(
    ("policy", "with_auth", "without"),
    [
        (QueuePolicy.AUTO, True, False),
        (QueuePolicy.REQUIRE, True, True),
        (QueuePolicy.IGNORE, False, False),
    ],
)
def test_whether_queues_must_allow_topics(
    policy: QueuePolicy, with_auth: bool, without: bool
) -> None:
    made = loaded(queue_policy=policy.value)
    assert made.is_policy_required(is_auth_on=True) is with_auth
    assert made.is_policy_required(is_auth_on=False) is without
