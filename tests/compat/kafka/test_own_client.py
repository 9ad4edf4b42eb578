"""Our own blocking client against a server that asks everybody who they are: each mechanism, in the
clear on this machine and over TLS; and from processes that were forked or begun anew."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.compat.kafka.locked import (
    ROOT_KEY,
    ROOT_SECRET,
    Operator,
    allow,
    locked_server,
    running_site,
)
from tests.harness.server import Server

from penstock.net.kafka_client.client import (
    EARLIEST,
    LATEST,
    HungUp,
    KafkaClient,
    KafkaRefused,
    NotKafka,
    Place,
    Security,
    security_from,
)
from penstock.record.batch import encode_batch, split_batches
from penstock.record.record import encode_record, iter_records
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import describe_configs
from penstock.wire.kafka.generated.create_topics import CreatableTopic, CreateTopicsRequest

PASSWORD = "correct horse, battery=staple"
CREATE_TOPICS, DESCRIBE_CONFIGS = 19, 32


class Site:
    def __init__(self, server: Server, ca: Path | None) -> None:
        self.server = server
        self.ca = ca
        self.operator = Operator(server, ca)

    def security(self, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> Security:
        return security_from(
            {
                "security.protocol": "SASL_PLAINTEXT" if self.ca is None else "SASL_SSL",
                "sasl.mechanism": mechanism,
                "sasl.username": user,
                "sasl.password": password,
                "ssl.ca.location": str(self.ca or ""),
            }
        )

    def client(self, security: Security) -> KafkaClient:
        return KafkaClient(self.server.kafka, security=security, timeout_s=10.0)

    def topic(self, name: str, partitions: int = 2) -> str:
        with self.client(self.security(ROOT_KEY, ROOT_SECRET)) as root:
            wanted = CreatableTopic(name, partitions, -1)
            reply = root.call(CREATE_TOPICS, CreateTopicsRequest([wanted], timeout_ms=10_000))
            assert reply.topics[0].error_code == 0, reply
        return name


@pytest.fixture(scope="module", params=["clear", "tls"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("own")
    with running_site(folder, is_tls=request.param == "tls") as (server, ca):
        yield Site(server, ca)


def batch(*values: bytes) -> bytes:
    encoded = [
        encode_record(offset_delta=number, timestamp_delta=0, key=None, value=value)
        for number, value in enumerate(values)
    ]
    now_ms = int(time.time() * 1_000)
    return encode_batch(
        encoded, base_offset=0, leader_epoch=-1, base_timestamp=now_ms, max_timestamp=now_ms
    )


def values(client: KafkaClient, place: Place) -> list[bytes | None]:
    found = client.fetch({place: 0}, wait_ms=0)[place]
    return [each.value for data in split_batches([found.records]) for each in iter_records(data)]


def read_elsewhere(address: str, security: Security, place: Place) -> list[bytes | None]:
    with KafkaClient(address, security=security) as client:
        return values(client, place)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_records_go_in_and_come_out(site: Site, mechanism: str) -> None:
    place = Place(site.topic(f"through-{mechanism.lower()}"), 1)
    with site.client(site.security(ROOT_KEY, ROOT_SECRET, mechanism)) as client:
        assert client.places(place.topic) == [Place(place.topic, 0), place]
        placed = client.produce({place: batch(b"a", b"b")}, is_repeatable=False)
        assert placed == {place: 0}
        assert client.offsets({place: LATEST}) == {place: 2}
        assert client.offsets({place: EARLIEST}) == {place: 0}
        assert values(client, place) == [b"a", b"b"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_with_a_password_and_no_rights_is_told_so(site: Site, mechanism: str) -> None:
    user = site.operator.user(allow("kafka:Describe"), password=PASSWORD)
    topic = site.topic(f"closed-{mechanism.lower()}")
    with site.client(site.security(user, PASSWORD, mechanism)) as client:
        with pytest.raises(KafkaRefused) as refused:
            client.produce({Place(topic, 0): batch(b"x")}, is_repeatable=False)
        assert refused.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        answer = client.fetch({Place(topic, 0): 0})[Place(topic, 0)]
        assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_secret_is_refused(site: Site, mechanism: str) -> None:
    security = site.security(ROOT_KEY, "not it", mechanism)
    with site.client(security) as client, pytest.raises(KafkaRefused) as refused:
        client.nodes()
    assert refused.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_whoever_does_not_log_in_is_hung_up_on(site: Site) -> None:
    security = Security() if site.ca is None else Security("SSL", ca_file=str(site.ca))
    with site.client(security) as client, pytest.raises(HungUp, match="need a login"):
        client.nodes()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_settings_go_to_other_processes(site: Site, method: str) -> None:
    place = Place(site.topic(f"elsewhere-{method}"), 0)
    security = site.security(ROOT_KEY, ROOT_SECRET)
    with site.client(security) as client:
        client.produce({place: batch(b"x", b"y")}, is_repeatable=False)
        with multiprocessing.get_context(method).Pool(1) as pool:
            found = pool.apply(read_elsewhere, (site.server.kafka, security, place))
        assert found == [b"x", b"y"]
        assert values(client, place) == [b"x", b"y"]  # nobody has touched this connection


def test_a_certificate_that_nobody_vouches_for_is_not_believed(site: Site) -> None:
    if site.ca is None:
        with site.client(Security("SSL")) as client, pytest.raises((HungUp, NotKafka)):
            client.nodes()
        return
    with site.client(Security("SSL")) as client, pytest.raises(NotKafka, match="not trusted"):
        client.nodes()
    elsewhere = Security("SSL", ca_file=str(site.ca), server_name="elsewhere.example")
    with site.client(elsewhere) as client, pytest.raises(NotKafka, match="not trusted"):
        client.nodes()


def test_a_log_in_that_was_good_for_a_time_is_renewed(tmp_path: Path) -> None:
    server = locked_server(tmp_path)
    server.env["PENSTOCK_KAFKA__LOGIN_MS"] = "5000"
    with server as running:
        site = Site(running, None)
        with site.client(site.security(ROOT_KEY, ROOT_SECRET)) as client:
            assert client.nodes() == [1]
            time.sleep(5.5)  # longer than it is good for; asked only well within a log-in's time
            assert client.nodes() == [1]


def test_the_node_names_the_protocol_that_it_speaks(site: Site) -> None:
    asked = describe_configs.DescribeConfigsResource(4, "1", ["advertised.listeners"])
    request = describe_configs.DescribeConfigsRequest([asked])
    with site.client(site.security(ROOT_KEY, ROOT_SECRET)) as client:
        (found,) = client.call(DESCRIBE_CONFIGS, request).results
    (row,) = found.configs
    protocol = "SASL_PLAINTEXT" if site.ca is None else "SASL_SSL"
    assert row.value == f"{protocol}://{site.server.kafka}"
