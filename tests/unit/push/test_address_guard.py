"""Which addresses may be called: every special range by itself, inside others, and by exception."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.push.address_guard import AddressGuard, Kind, kind_of, parse_rules, plain_address

PORT = 443
STRICT = AddressGuard()
DEVELOPMENT = AddressGuard(is_development=True)

PUBLIC = [
    "1.1.1.1", "8.8.8.8", "172.15.255.255", "172.32.0.0", "100.63.255.255", "100.128.0.0",
    "192.0.1.0", "223.255.255.255", "169.253.255.255", "2606:4700::1111", "2a00::1",
]  # fmt: skip
REFUSED_V4 = {
    "127.0.0.1": Kind.LOOPBACK, "127.255.255.254": Kind.LOOPBACK, "0.0.0.0": Kind.UNSPECIFIED,
    "0.1.2.3": Kind.UNSPECIFIED, "10.0.0.1": Kind.PRIVATE, "10.255.255.255": Kind.PRIVATE,
    "172.16.0.1": Kind.PRIVATE, "172.31.255.255": Kind.PRIVATE, "192.168.0.1": Kind.PRIVATE,
    "100.64.0.1": Kind.SHARED, "100.100.100.200": Kind.SHARED, "100.127.255.255": Kind.SHARED,
    "169.254.169.254": Kind.LINK_LOCAL, "168.63.129.16": Kind.METADATA, "224.0.0.1": Kind.MULTICAST,
    "239.255.255.255": Kind.MULTICAST, "240.0.0.1": Kind.RESERVED, "255.255.255.255": Kind.RESERVED,
    "192.0.0.192": Kind.RESERVED, "192.88.99.1": Kind.RESERVED, "192.0.2.1": Kind.DOCUMENTATION,
    "198.51.100.1": Kind.DOCUMENTATION, "203.0.113.255": Kind.DOCUMENTATION,
    "198.18.0.1": Kind.BENCHMARK, "198.19.255.255": Kind.BENCHMARK,
}  # fmt: skip
REFUSED_V6 = {
    "::1": Kind.LOOPBACK, "::": Kind.UNSPECIFIED, "fc00::1": Kind.PRIVATE,
    "fd00:ec2::254": Kind.PRIVATE,
    "fe80::1": Kind.LINK_LOCAL, "febf::1": Kind.LINK_LOCAL, "ff02::1": Kind.MULTICAST,
    "2001:db8::1": Kind.DOCUMENTATION, "3fff::1": Kind.DOCUMENTATION, "2001:2::1": Kind.BENCHMARK,
    "fec0::1": Kind.RESERVED, "100::1": Kind.RESERVED, "5f00::1": Kind.RESERVED,
    "::2": Kind.RESERVED,
    "2001:10::1": Kind.RESERVED, "64:ff9b:1::1": Kind.RESERVED, "4000::1": Kind.RESERVED,
}  # fmt: skip


def v6(number: int) -> str:
    return str(ipaddress.IPv6Address(number))


def embeddings(text: str) -> dict[str, str]:
    """Return the IPv6 addresses that contain an IPv4 address."""
    number = int(ipaddress.IPv4Address(text))
    other = int(ipaddress.IPv4Address("8.8.8.8"))
    teredo = 0x2001_0000 << 96
    return {
        "mapped": v6((0xFFFF << 32) | number),
        "compatible": v6(number),
        "nat64": v6((0x0064_FF9B << 96) | number),
        "local nat64": v6((0x0064_FF9B_0001 << 80) | number),
        "6to4": v6((0x2002 << 112) | (number << 80) | 1),
        "teredo server": v6(teredo | (number << 64) | (other ^ 0xFFFF_FFFF)),
        "teredo client": v6(teredo | (other << 64) | (number ^ 0xFFFF_FFFF)),
    }


def refusal(guard: AddressGuard, *addresses: str, host: str = "h.example", port: int = PORT) -> str:
    return guard.refusal(host, port, addresses) or ""


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert not refusal(STRICT, address)
    assert kind_of(ipaddress.ip_address(address)) is None


@pytest.mark.parametrize(("address", "kind"), [*REFUSED_V4.items(), *REFUSED_V6.items()])
def test_special_addresses_are_refused(address: str, kind: Kind) -> None:
    assert kind_of(ipaddress.ip_address(address)) is kind
    assert refusal(STRICT, address)
    allowed_in_development = kind in (Kind.LOOPBACK, Kind.PRIVATE)
    assert bool(refusal(DEVELOPMENT, address)) is not allowed_in_development


@pytest.mark.parametrize("address", REFUSED_V4)
def test_special_addresses_inside_others_are_refused(address: str) -> None:
    for name, embedded in embeddings(address).items():
        assert refusal(STRICT, embedded), name


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "8.8.8.8"])
def test_deny_also_counts_inside_others(address: str) -> None:
    guard = AddressGuard(
        allow=parse_rules(["0.0.0.0/0", "::/0"]), deny=parse_rules([f"{address}/32"])
    )
    assert not refusal(guard, "169.254.169.254"), "allowed by name of its network"
    for name, embedded in embeddings(address).items():
        assert "push.deny" in refusal(guard, embedded), name
    assert not refusal(guard, *embeddings("8.8.4.4").values()) or address == "8.8.8.8"


def test_public_addresses_behind_nat64_and_6to4_are_allowed() -> None:
    inside = embeddings("8.8.4.4")
    assert not refusal(STRICT, inside["mapped"], inside["nat64"], inside["6to4"])


def test_one_bad_address_refuses_the_whole_name() -> None:
    assert not refusal(STRICT, "1.1.1.1", "2606:4700::1111")
    assert refusal(STRICT, "1.1.1.1", "10.0.0.1")
    assert refusal(STRICT, "10.0.0.1", "1.1.1.1")
    assert refusal(STRICT, *["1.1.1.1"] * 1_000, "::1")
    assert refusal(STRICT), "a name without addresses"
    assert refusal(STRICT, "not an address")


@given(st.integers(0, 2**32 - 1))
def test_no_ipv4_address_is_allowed_that_python_calls_special(number: int) -> None:
    address = ipaddress.IPv4Address(number)
    if kind_of(address) is None:
        assert address.is_global
        assert not address.is_multicast


@given(st.integers(0, 2**128 - 1) | st.integers(0, 2**125 - 1).map(lambda n: n | 1 << 125))
def test_no_ipv6_address_is_allowed_that_python_calls_special(number: int) -> None:
    address = ipaddress.IPv6Address(number)
    if kind_of(address) is None:
        assert address.is_global or address in ipaddress.ip_network("64:ff9b::/96")


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(embeddings("1.1.1.1"))))
def test_what_contains_a_refused_address_is_refused(number: int, form: str) -> None:
    text = str(ipaddress.IPv4Address(number))
    if refusal(STRICT, text):
        assert refusal(STRICT, embeddings(text)[form])


def test_special_addresses_can_be_allowed() -> None:
    guard = AddressGuard(allow=parse_rules(["10.1.0.0/16", "169.254.1.1", "fd00::/8"]))
    assert not refusal(guard, "10.1.2.3", "169.254.1.1", "fd12::1", "::ffff:10.1.2.3")
    for address in ("10.2.0.1", "169.254.169.254", "fc00::1", "127.0.0.1"):
        assert refusal(guard, address)
    assert refusal(guard, "64:ff9b::a02:1")
    assert not refusal(guard, "64:ff9b::a01:1")


def test_a_host_suffix_allows_private_addresses_but_not_this_machine() -> None:
    guard = AddressGuard(allow=parse_rules([".corp.example"]))
    for host in ("corp.example", "a.b.corp.example"):
        assert not refusal(guard, "10.0.0.1", "192.168.1.1", "fd00::1", "100.64.0.1", host=host)
        for address in ("127.0.0.1", "::1", "169.254.169.254", "fe80::1", "0.0.0.0"):
            assert refusal(guard, address, host=host)
    for host in ("xcorp.example", "corp.example.evil.com", "h.example"):
        assert refusal(guard, "10.0.0.1", host=host)


def test_deny_wins() -> None:
    guard = AddressGuard(
        allow=parse_rules(["10.0.0.0/8", "corp.example"]),
        deny=parse_rules(["10.9.0.0/16", "secret.corp.example", "8.8.8.8"]),
        is_development=True,
    )
    assert not refusal(guard, "10.1.1.1")
    assert refusal(guard, "10.9.1.1")
    assert refusal(guard, "10.9.1.1", host="corp.example")
    assert refusal(guard, "8.8.8.8")
    assert refusal(guard, "1.1.1.1", host="secret.corp.example")
    assert refusal(guard, "1.1.1.1", host="x.secret.corp.example")


@pytest.mark.parametrize(
    ("port", "is_allowed"),
    [(80, True), (443, True), (1_024, True), (65_535, True)]
    + [(port, False) for port in (1, 22, 25, 79, 81, 442, 444, 1_023)],
)
def test_ports(port: int, is_allowed: bool) -> None:
    assert (not refusal(STRICT, "1.1.1.1", port=port)) is is_allowed
    assert not refusal(AddressGuard(ports=((port, port),)), "1.1.1.1", port=port)


def test_the_clusters_own_addresses_are_always_refused() -> None:
    guard = AddressGuard(
        allow=parse_rules(["0.0.0.0/0", "::/0"]),
        own=[("10.0.0.5", 9_324), ("127.0.0.1", 9_644), ("0.0.0.0", 9_092), ("etcd-1", 2_379)],
        local=["10.0.0.5", "fd00::5", "203.0.113.5"],
        is_development=True,
    )
    refused = [
        ("10.0.0.5", 9_324), ("::ffff:10.0.0.5", 9_324), ("64:ff9b::a00:5", 9_324),
        ("127.0.0.1", 9_644), ("127.9.9.9", 9_644), ("::1", 9_644), ("10.0.0.5", 9_644),
        ("0.0.0.0", 9_644), ("127.0.0.1", 9_092), ("10.0.0.5", 9_092), ("fd00::5", 9_092),
        ("203.0.113.5", 9_092), ("::", 9_092), ("10.0.0.77", 2_379), ("127.0.0.1", 2_379),
        ("fd00::77", 2_379),
    ]  # fmt: skip
    for address, port in refused:
        assert "this cluster" in refusal(guard, address, port=port), (address, port)
        assert "this cluster" in refusal(guard, address, port=port, host="rebound.example")
    assert "this cluster" in refusal(guard, "1.1.1.1", host="etcd-1", port=2_379)
    for address, port in [("10.0.0.5", 8_080), ("10.0.0.6", 9_324), ("127.0.0.1", 8_080),
                          ("1.1.1.1", 2_379), ("10.0.0.6", 9_092)]:  # fmt: skip
        assert not refusal(guard, address, port=port), (address, port)


@pytest.mark.parametrize("text", ["", ".", "10.0.0.1/8", "10.0.0.0/33", "fe80::/200", "1.2.3"])
def test_rules_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError):
        parse_rules([text])


def test_a_mapped_address_is_connected_to_as_ipv4() -> None:
    assert plain_address("::ffff:1.2.3.4") == "1.2.3.4"
    assert plain_address("2A00:0::1") == "2a00::1"
