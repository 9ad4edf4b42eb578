"""What a node tells of where it listens: addresses that can be dialled, protocols by name."""

import pytest

from penstock.node.configuration.exposure import kafka_protocol, reachable


@pytest.mark.parametrize(
    ("bound", "dialled"),
    [
        ("0.0.0.0:9092", "127.0.0.1:9092"),
        ("https://0.0.0.0:9325", "https://127.0.0.1:9325"),
        ("http://[::]:9325", "http://[::1]:9325"),
        ("[::]:1", "[::1]:1"),
        ("http://10.0.0.0:9325", "http://10.0.0.0:9325"),
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("", ""),
    ],
)
def test_every_interface_is_reached_on_this_machines_own(bound: str, dialled: str) -> None:
    assert reachable(bound) == dialled


def test_the_four_protocols_of_kafka_clients() -> None:
    named = {
        (is_tls, is_on): kafka_protocol(is_tls=is_tls, is_auth_on=is_on)
        for is_tls in (False, True)
        for is_on in (False, True)
    }
    assert named == {
        (False, False): "PLAINTEXT",
        (True, False): "SSL",
        (False, True): "SASL_PLAINTEXT",
        (True, True): "SASL_SSL",
    }
