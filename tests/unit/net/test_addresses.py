"""Addresses of this machine, and addresses in texts."""

import socket

import pytest

from penstock.net.addresses import machine_addresses, split_address


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.1:9092", ("10.0.0.1", 9092)),
        ("http://a.example:8080", ("a.example", 8080)),
        ("https://a.example/path", ("a.example", 443)),
        ("http://a.example", ("a.example", 80)),
        ("[::1]:7000", ("::1", 7000)),
        ("a.example", None),
        ("a.example:99999", None),
        ("", None),
    ],
)
def test_an_address_has_a_host_and_a_port(text: str, found: tuple[str, int] | None) -> None:
    assert split_address(text) == found


def test_every_address_of_the_machine_can_be_bound() -> None:
    found = machine_addresses()
    assert "127.0.0.1" in found
    for address in found:
        if not address.startswith("fe80:"):  # needs the name of its interface
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with socket.socket(family) as bound:
                bound.bind((address, 0))
