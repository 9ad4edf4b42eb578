"""Which roles go together, where other nodes are, and what a node that is one of several is refused
for."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.node.configuration.cluster_config import (
    ALL,
    ATTACHED,
    EVERYTHING,
    SERVICE,
    NodeAddress,
    check_members,
    check_node_addresses,
    parse_node_addresses,
    parse_roles,
)
from penstock.node.configuration.config import Config, ConfigInvalid, load
from penstock.node.configuration.exposure import ExposureRefused, check_internal
from penstock.node.metadata.metadata_link import STORE_FEATURE, ExpectedStore
from penstock.wire.internal.faults import HelloRefused
from penstock.wire.internal.frame import Hello


def loaded(**flags: object) -> Config:
    return load({key.replace("__", "."): value for key, value in flags.items()}, {}).config


def test_roles_are_everything_the_service_or_the_rest() -> None:
    assert parse_roles(ALL) == EVERYTHING
    assert parse_roles(" metadata ") == SERVICE
    assert parse_roles("broker,frontend") == ATTACHED
    for text in ("", "frontend", "broker,metadata", "console", "frontend,broker,x"):
        with pytest.raises(ValueError, match="expected"):
            parse_roles(text)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"node__roles": "metadata"}, "--internal"),
        ({"node__roles": "frontend,broker"}, "--metadata"),
        ({"internal__listen": "127.0.0.1:1"}, "--role metadata"),
        ({"metadata__service": "127.0.0.1:1"}, "--role frontend,broker"),
        ({"internal__certificate": "a.pem"}, "set together"),
        ({"internal__ca": "a.pem"}, "set together"),
        (
            {
                "node__roles": "metadata",
                "internal__listen": "127.0.0.1:1",
                "metadata__members": "m1=127.0.0.1:1",
            },
            "node.name must be one of",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(flags: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigInvalid, match=why):
        loaded(**flags)


def test_places_may_say_who_must_answer() -> None:
    assert parse_node_addresses("a:1, m2=[::1]:2,") == [
        NodeAddress("a", 1),
        NodeAddress("::1", 2, "m2"),
    ]
    assert [str(place) for place in parse_node_addresses("a:1,[::1]:2")] == ["a:1", "[::1]:2"]
    for text in ("a", "a:0", "=a:1", "a:1,a:1", "a:70000", ",".join(f"h{n}:1" for n in range(65))):
        with pytest.raises(ValueError, match=r"\w"):
            parse_node_addresses(text)
    assert check_members("m1=a:1,m2=b:1") is None
    assert check_members("a:1") == "expected name=host:port for each member"
    assert check_members("m1=a:1,m1=b:1") == "two members have the same name"


@given(st.text(alphabet="ab=:,[]019. ", max_size=40))
@settings(max_examples=200)
def test_any_text_is_refused_or_places_that_are_the_same_when_written_again(text: str) -> None:
    if check_node_addresses(text) is not None:
        return
    places = parse_node_addresses(text)
    written = ",".join(f"{place.name}={place}" if place.name else str(place) for place in places)
    assert parse_node_addresses(written) == places


def test_only_this_machine_may_do_without_certificates() -> None:
    near = {"node__roles": "metadata", "internal__listen": "127.0.0.1:9400"}
    far = {**near, "internal__listen": "10.0.0.1:9400"}
    asked = {"node__roles": "frontend,broker", "metadata__service": "127.0.0.1:1,10.0.0.1:1"}
    check_internal(loaded(**near))
    for flags in (far, asked):
        with pytest.raises(ExposureRefused, match=r"10\.0\.0\.1.*no TLS between nodes"):
            check_internal(loaded(**flags))
        check_internal(loaded(**flags, auth__insecure=True))
        check_internal(loaded(**flags, internal__certificate="c.pem", internal__ca="ca.pem"))


def test_etcd_on_another_machine_needs_tls() -> None:
    node = {"cluster__node": 1, "internal__listen": "127.0.0.1:9400"}
    for near in ("127.0.0.1:2379", "localhost:2379,[::1]:2379"):
        check_internal(loaded(**node, cluster__etcd=near))
    for far in ("10.0.0.1:2379", "127.0.0.1:2379,etcd.internal:2379", "[2001:db8::1]:2379"):
        flags = {**node, "cluster__etcd": far}
        with pytest.raises(ExposureRefused, match=r"etcd at .* is on another machine.*--insecure"):
            check_internal(loaded(**flags))
        with pytest.raises(ExposureRefused):
            # Certificates between nodes do not protect the calls to etcd.
            check_internal(loaded(**flags, internal__certificate="c.pem", internal__ca="ca.pem"))
        check_internal(loaded(**flags, cluster__etcd_ca="ca.pem"))
        check_internal(loaded(**flags, auth__insecure=True))


def test_clients_and_nodes_have_authorities_of_their_own(tmp_path: Path) -> None:
    one, copy, other = (tmp_path / name for name in ("one.pem", "copy.pem", "other.pem"))
    one.write_text("authority")
    copy.write_text("authority")
    other.write_text("another")
    flags = {"internal__certificate": "c.pem", "internal__ca": str(one)}
    with pytest.raises(ExposureRefused, match="could act as a node"):
        check_internal(loaded(**flags, tls__client_ca_file=str(copy)))
    check_internal(loaded(**flags, tls__client_ca_file=str(other)))


def hello(*features: str) -> Hello:
    return Hello(1, 1, "penstock", "m1", features)


def test_a_node_belongs_to_the_first_store_it_has_met(tmp_path: Path) -> None:
    with pytest.raises(HelloRefused, match="not a metadata node"):
        ExpectedStore(tmp_path).check(hello("other=1"))
    pin = ExpectedStore(tmp_path)
    assert pin.store_id == ""
    pin.check(hello(STORE_FEATURE + "first"))
    pin.check(hello(STORE_FEATURE + "first"))
    after_a_restart = ExpectedStore(tmp_path)
    assert after_a_restart.store_id == "first"
    for one in (pin, after_a_restart):
        with pytest.raises(HelloRefused, match=r"another store \(second\)"):
            one.check(hello(STORE_FEATURE + "second"))
