"""Real clients that log in, against a server that asks everybody who they are: each mechanism with
each client, in the clear on this machine and over TLS; and how soon a change is felt."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import kafka.errors
import pytest
from aiokafka.errors import AuthenticationFailedError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.compat.kafka.confluent import SECONDS_MAX, Sent, consumer, kinds, producer, read, send
from tests.compat.kafka.conftest import create_topic
from tests.compat.kafka.locked import (
    ROOT_KEY,
    ROOT_SECRET,
    Operator,
    allow,
    locked_server,
)
from tests.compat.test_tls import arguments, make_certificates
from tests.harness.patience import eventually
from tests.harness.server import Server

PASSWORD = "correct horse, battery=staple"
FELT_SECONDS_MAX = 5.0
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
EVERYTHING = allow("*")


class Place:
    """A server, its operator, and how clients reach it."""

    def __init__(self, server: Server, ca: Path | None) -> None:
        self.server = server
        self.ca = ca
        self.operator = Operator(server, ca)
        self.protocol = "SASL_PLAINTEXT" if ca is None else "SASL_SSL"

    def confluent(
        self, user: str, password: str = PASSWORD, mechanism: str = "SCRAM-SHA-256"
    ) -> Any:
        """Settings for librdkafka, with ``_`` for ``.``."""
        found: dict[str, object] = {
            "security_protocol": self.protocol,
            "sasl_mechanism": mechanism,
            "sasl_username": user,
            "sasl_password": password,
        }
        if self.ca is not None:
            found["ssl_ca_location"] = str(self.ca)
        return found

    def python(self, user: str, password: str = PASSWORD, mechanism: str = "SCRAM-SHA-256") -> Any:
        """Settings for kafka-python."""
        found: dict[str, object] = {
            "bootstrap_servers": self.server.kafka,
            "security_protocol": self.protocol,
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": password,
        }
        if self.ca is not None:
            found["ssl_cafile"] = str(self.ca)
        return found

    def aio(self, user: str, password: str = PASSWORD, mechanism: str = "SCRAM-SHA-256") -> Any:
        found = self.python(user, password, mechanism)
        if found.pop("ssl_cafile", None) is not None:
            found["ssl_context"] = ssl.create_default_context(cafile=str(self.ca))
        return found

    def admin(self, user: str = ROOT_KEY, password: str = ROOT_SECRET) -> AdminClient:
        given = self.confluent(user, password, "PLAIN")
        settings = {key.replace("_", "."): value for key, value in given.items()}
        return AdminClient({"bootstrap.servers": self.server.kafka, **settings})

    def topic(self) -> str:
        name = f"topic-{uuid.uuid4().hex[:12]}"
        create_topic(self.admin(), name)
        return name


@pytest.fixture(scope="module", params=["plain", "tls"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp(f"sasl-{request.param}")
    ca = None
    more: list[str] = []
    if request.param == "tls":
        make_certificates(folder / "certificates")
        ca = folder / "certificates" / "ca.pem"
        more = arguments(folder / "certificates")
    with locked_server(folder, *more) as running:
        yield Place(running, ca)
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()
        assert PASSWORD not in running.stderr
        assert ROOT_SECRET not in running.stderr


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """For what does not depend on TLS."""
    with locked_server(tmp_path_factory.mktemp("sasl-here")) as running:
        yield Place(running, None)
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()


# ── Each mechanism with each client ──────────────────────────────────────────────────────────


def by_confluent(place: Place, topic: str, user: str, password: str, mechanism: str) -> bytes:
    given = place.confluent(user, password, mechanism)
    send(producer(place.server.kafka, **given), topic, [b"confluent"])
    with consumer(place.server.kafka, "g-confluent", **given) as made:
        made.subscribe([topic])
        value: bytes = read(made, 1)[0].value()
    return value


def by_kafka_python(place: Place, topic: str, user: str, password: str, mechanism: str) -> bytes:
    given = place.python(user, password, mechanism)
    sender = kafka.KafkaProducer(**given)
    sender.send(topic, b"kafka-python").get(SECONDS_MAX)
    sender.close()
    reader = kafka.KafkaConsumer(
        topic,
        group_id="g-python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(SECONDS_MAX * 1_000),
        **given,
    )
    value: bytes = next(iter(reader)).value
    reader.close()
    return value


def by_aiokafka(place: Place, topic: str, user: str, password: str, mechanism: str) -> bytes:
    async def both() -> bytes:
        given = place.aio(user, password, mechanism)
        async with aiokafka.AIOKafkaProducer(**given) as sender:
            await sender.send_and_wait(topic, b"aiokafka")
        async with aiokafka.AIOKafkaConsumer(
            topic, group_id="g-aio", auto_offset_reset="earliest", **given
        ) as reader:
            async with asyncio.timeout(SECONDS_MAX):
                value: bytes = (await reader.getone()).value
                return value

    return asyncio.run(both())


Client = Callable[[Place, str, str, str, str], bytes]
CLIENTS: dict[str, Client] = {
    "confluent": by_confluent,
    "kafka-python": by_kafka_python,
    "aiokafka": by_aiokafka,
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_user_logs_in_with_its_password(place: Place, client: str, mechanism: str) -> None:
    user = place.operator.user(EVERYTHING, password=PASSWORD)
    found = CLIENTS[client](place, place.topic(), user, PASSWORD, mechanism)
    assert found == client.encode()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_an_access_key_logs_in_with_its_secret(here: Place, client: str, mechanism: str) -> None:
    key_id, secret = here.operator.key(here.operator.user(EVERYTHING))
    found = CLIENTS[client](here, here.topic(), key_id, secret, mechanism)
    assert found == client.encode()


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kcat_logs_in(place: Place, mechanism: str) -> None:
    user, topic = place.operator.user(EVERYTHING, password=PASSWORD), place.topic()
    given = place.confluent(user, PASSWORD, mechanism)
    options = [
        part
        for key, value in {"bootstrap.servers": place.server.kafka, **given}.items()
        for part in ("-X", f"{key.replace('_', '.')}={value}")
    ]
    for command, text in ((["-P", "-t", topic], "kcat\n"), (["-C", "-t", topic, "-e", "-q"], "")):
        done = subprocess.run(
            ["kcat", *options, *command],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout == "kcat\n"


# ── Who is not let in ────────────────────────────────────────────────────────────────────────


def is_let_in(place: Place, user: str, password: str = PASSWORD, mechanism: str = "PLAIN") -> bool:
    """By librdkafka, which goes on trying: its first word counts."""
    errors: list[KafkaError] = []
    given = place.confluent(user, password, mechanism)
    settings = {key.replace("_", "."): value for key, value in given.items()}
    made: Any = Producer(
        {"bootstrap.servers": place.server.kafka, "error_cb": errors.append, **settings}
    )
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        made.poll(0.1)
        if any(each.code() == KafkaError._AUTHENTICATION for each in errors):
            return False
        with contextlib.suppress(KafkaException):
            made.list_topics(timeout=1)
            return True
    raise AssertionError(f"neither let in nor refused: {errors}")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_others_are_refused_by_a_word_that_clients_understand(here: Place, mechanism: str) -> None:
    user = here.operator.user(EVERYTHING, password=PASSWORD)
    key_id, secret = here.operator.key(user)
    assert is_let_in(here, user, PASSWORD, mechanism)
    assert is_let_in(here, key_id, secret, mechanism)
    assert not is_let_in(here, user, "wrong", mechanism)
    assert not is_let_in(here, "nobody", PASSWORD, mechanism)
    assert not is_let_in(here, key_id, PASSWORD, mechanism)
    here.operator.disable(key_id)
    assert not is_let_in(here, key_id, secret, mechanism)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_other_clients_understand_it_as_well(here: Place, mechanism: str) -> None:
    user = here.operator.user(EVERYTHING, password=PASSWORD)
    with pytest.raises(kafka.errors.KafkaTimeoutError):  # it goes on trying, and says so in a log
        kafka.KafkaAdminClient(
            bootstrap_timeout_ms=2_000, **here.python(user, "wrong", mechanism)
        ).list_topics()

    async def refused() -> None:
        made = aiokafka.AIOKafkaProducer(**here.aio(user, "wrong", mechanism))
        try:
            await made.start()
        finally:
            await made.stop()

    with pytest.raises((AuthenticationFailedError, aiokafka.errors.KafkaConnectionError)):
        asyncio.run(refused())


def test_who_does_not_log_in_gets_nothing(here: Place) -> None:
    made = producer(here.server.kafka, socket_timeout_ms=2_000)
    with pytest.raises(KafkaException):
        made.list_topics(timeout=3)


# ── How soon a change is felt ────────────────────────────────────────────────────────────────


def code_of_send(made: Any, topic: str) -> int:
    error: KafkaError | None = None
    try:
        send(made, topic, [b"x"])
    except Sent as refused:
        error = refused.error
    except KafkaException as refused:  # it remembers the last answer for a while
        error = refused.args[0]
    code: int = 0 if error is None else error.code()
    return code


def rule(user: str, topic: str, permission: Any, operation: Any) -> Any:
    return kinds.AclBinding(
        kinds.ResourceType.TOPIC,
        topic,
        kinds.ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        operation,
        permission,
    )


def settled(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(SECONDS_MAX) for future in futures.values()]


def test_a_rule_is_felt_without_connecting_again(here: Place) -> None:
    admin, topic = here.admin(), here.topic()
    user = here.operator.user(allow("kafka:Describe", "kafka:IdempotentWrite"), password=PASSWORD)
    made = producer(here.server.kafka, **here.confluent(user))
    assert code_of_send(made, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    binding = rule(user, topic, kinds.AclPermissionType.ALLOW, kinds.AclOperation.WRITE)
    settled(admin.create_acls([binding]))
    eventually(
        lambda: code_of_send(made, topic) == 0, seconds=FELT_SECONDS_MAX, what="the right to write"
    )
    filters = kinds.AclBindingFilter(
        kinds.ResourceType.ANY,
        None,
        kinds.ResourcePatternType.ANY,
        f"User:{user}",
        None,
        kinds.AclOperation.ANY,
        kinds.AclPermissionType.ANY,
    )
    assert admin.describe_acls(filters).result(SECONDS_MAX) == [binding]
    (gone,) = settled(admin.delete_acls([filters]))
    assert gone == [binding]
    eventually(
        lambda: code_of_send(made, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED,
        seconds=FELT_SECONDS_MAX,
        what="the end of the right",
    )


def test_a_disabled_key_is_felt_by_who_is_connected(here: Place) -> None:
    topic = here.topic()
    key_id, secret = here.operator.key(here.operator.user(EVERYTHING))
    reader = kafka.KafkaConsumer(
        topic, auto_offset_reset="earliest", **here.python(key_id, secret, "PLAIN")
    )
    sender = producer(here.server.kafka, **here.confluent(ROOT_KEY, ROOT_SECRET, "PLAIN"))
    send(sender, topic, [b"before"])
    assert next(iter(reader)).value == b"before"
    here.operator.disable(key_id)
    began = time.monotonic()
    send(sender, topic, [b"after"])
    found: list[Any] = []
    with contextlib.suppress(kafka.errors.KafkaError):
        while time.monotonic() - began < FELT_SECONDS_MAX:
            found += [each for some in reader.poll(timeout_ms=500).values() for each in some]
    assert found == []
    with contextlib.suppress(kafka.errors.KafkaError):
        reader.close()


# ── Two tenants ──────────────────────────────────────────────────────────────────────────────


def test_two_tenants_with_the_same_names_do_not_meet(here: Place) -> None:
    topic, group = f"same-{uuid.uuid4().hex[:8]}", "same-group"
    found = {}
    users = []
    for _ in range(2):
        tenant = here.operator.tenant()
        name = here.operator.user(EVERYTHING, tenant=tenant, password=PASSWORD)
        users.append(f"{tenant}/{name}")
    for user in users:
        given = {key.replace("_", "."): value for key, value in here.confluent(user).items()}
        create_topic(AdminClient({"bootstrap.servers": here.server.kafka, **given}), topic)
        send(producer(here.server.kafka, **here.confluent(user)), topic, [user.encode()])
    for user in users:
        with consumer(here.server.kafka, group, **here.confluent(user)) as made:
            made.subscribe([topic])
            found[user] = [each.value().decode() for each in read(made, 1)]
            made.commit(asynchronous=False)
            (assigned,) = made.assignment()
            assert assigned.topic == topic  # all of it, though the other has a member as well
    assert found == {user: [user] for user in users}
    (first, second) = users
    reader = Consumer(
        {
            "bootstrap.servers": here.server.kafka,
            "group.id": group,
            **{key.replace("_", "."): value for key, value in here.confluent(first).items()},
        }
    )
    (offset,) = reader.committed([TopicPartition(topic, 0)], timeout=SECONDS_MAX)
    assert offset.offset == 1
    reader.close()
    admin = AdminClient(
        {
            "bootstrap.servers": here.server.kafka,
            **{key.replace("_", "."): value for key, value in here.confluent(second).items()},
        }
    )
    assert set(admin.list_topics(timeout=SECONDS_MAX).topics) == {topic, "__consumer_offsets"}
    settled(dict(admin.delete_consumer_groups([group])))
    settled(dict(admin.delete_topics([topic])))
    with consumer(here.server.kafka, "other", **here.confluent(first)) as made:
        made.subscribe([topic])
        assert [each.value().decode() for each in read(made, 1)] == [first]


# ── Passwords through Kafka's own API ────────────────────────────────────────────────────────


def test_a_password_is_given_and_taken_by_an_admin_client(here: Place) -> None:
    admin, name = here.admin(), f"u-{uuid.uuid4().hex[:12]}"
    info = kinds.ScramCredentialInfo(kinds.ScramMechanism.SCRAM_SHA_512, 8_192)
    given = kinds.UserScramCredentialUpsertion(name, info, PASSWORD.encode())
    settled(admin.alter_user_scram_credentials([given]))
    assert is_let_in(here, name, PASSWORD, "SCRAM-SHA-512")
    asked: Any = admin.describe_user_scram_credentials([name])
    shown = settled(asked)
    assert [each.iterations for each in shown[0].scram_credential_infos] == [8_192]
    taken = kinds.UserScramCredentialDeletion(name, kinds.ScramMechanism.SCRAM_SHA_512)
    settled(admin.alter_user_scram_credentials([taken]))
    assert not is_let_in(here, name, PASSWORD, "SCRAM-SHA-512")
