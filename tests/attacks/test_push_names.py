"""Names that lead into the network of a server in production: at once, for some of their addresses,
in another address format, or only after the check.

The server runs in a thread of the test, because the test answers its lookups of names. 127.0.0.1,
which the operator allows, stands for a public address, and 127.0.0.2 for a service inside."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.credentials import Credentials
from tests.attacks.kit import send
from tests.attacks.push_stage import sns_as
from tests.attacks.stalls import LoopServer
from tests.harness.endpoint import Endpoint, Seen
from tests.harness.patience import eventually

from penstock.flow.verdicts import Failure

PUBLIC, INSIDE = "127.0.0.1", "127.0.0.2"
SYSTEM = socket.getaddrinfo


class Names:
    """Answers lookups. Each one gets the next answer of its name; the last answer is repeated."""

    def __init__(self) -> None:
        self.answers: dict[str, list[list[str]]] = {}
        self.asked: Counter[str] = Counter()

    def getaddrinfo(self, host: Any, *rest: Any, **more: Any) -> Any:
        answers = self.answers.get(host)
        if answers is None:
            return SYSTEM(host, *rest, **more)
        self.asked[host] += 1
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in found]


@pytest.fixture(scope="module")
def names() -> Iterator[Names]:
    made = Names()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", made.getaddrinfo)
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, names: Names) -> Iterator[LoopServer]:
    folder = tmp_path_factory.mktemp("names")
    settings: dict[str, Any] = {"node.mode": "prod", "push.allow": PUBLIC}
    with LoopServer(folder, **settings) as running:
        yield running


@pytest.fixture(scope="module")
def inside_endpoint() -> Iterator[Endpoint]:
    with Endpoint(hosts=(PUBLIC, INSIDE)) as made:
        yield made


class Caller:
    """Lets the server call names, and tells where the requests arrived."""

    def __init__(self, server: LoopServer, endpoint: Endpoint, topic: str) -> None:
        self._host, self._endpoint = urlsplit(server.admin_url).netloc, endpoint
        self.port = endpoint.ports["http"]
        self.sns = sns_as(server, Credentials("x", "y"))
        self.topic = str(self.sns.create_topic(Name=topic)["TopicArn"])
        self._seen = len(endpoint.ledger())
        self._connections = endpoint.connection_count()

    def _ask(self, path: str, body: object) -> Any:
        headers = {"content-type": "application/json"}
        path = f"/api/v1/subscriptions{path}"
        return send(self._host, "POST", path, json.dumps(body), headers, seconds=60)

    def test(self, host: str) -> Any:
        body = {"source": self.topic, "endpoint": f"http://{host}:{self.port}/hook"}
        status, reply, _ = self._ask("", body)
        assert status == 201, reply
        path, found = f"/{json.loads(reply)['id']}/test", list[Any]()

        def is_sent() -> bool:
            status, reply, _ = self._ask(path, {"body": "x"})
            found[:] = [json.loads(reply)]
            return bool(status == 200)

        eventually(is_sent, seconds=60, what="the webhook runs")
        return found[0]

    def seen(self) -> list[Seen]:
        return self._endpoint.ledger(self._seen)

    def connections(self) -> int:
        return self._endpoint.connection_count() - self._connections


@pytest.fixture
def caller(
    server: LoopServer, inside_endpoint: Endpoint, name: Callable[..., str]
) -> Iterator[Caller]:
    made = Caller(server, inside_endpoint, name())
    yield made
    made.sns.close()


BAD = {
    "inside": [INSIDE],
    "one-of-two": [PUBLIC, INSIDE],
    "mapped": [f"::ffff:{INSIDE}"],
    "metadata": ["169.254.169.254"],
    "nat64": ["64:ff9b::7f00:2"],
    "none": [],
}


@pytest.mark.parametrize("which", BAD)
def test_a_name_that_leads_inside_is_not_called(caller: Caller, names: Names, which: str) -> None:
    host = f"{which}.example"
    names.answers[host] = [BAD[which]]
    sent = caller.test(host)
    assert (sent["is_delivered"], sent["reason"]) == (False, Failure.UNUSABLE.value)
    assert names.asked[host] == 1
    assert caller.connections() == 0


def test_a_name_that_changes_between_check_and_connection(caller: Caller, names: Names) -> None:
    host = "changing.example"
    names.answers[host] = [[PUBLIC], [INSIDE]]
    assert caller.test(host)["is_delivered"]
    [seen] = caller.seen()
    assert seen.address == PUBLIC
    assert seen.headers["host"] == f"{host}:{caller.port}"
    assert names.asked[host] == 1, "the connection goes to the address that was checked"


def test_a_confirmation_goes_inside_as_little_as_a_message(caller: Caller, names: Names) -> None:
    names.answers |= {"confirm.example": [[INSIDE]], "public.example": [[PUBLIC]]}
    url = f"http://{{}}:{caller.port}/hook"
    for host in ("confirm.example", "public.example"):
        caller.sns.subscribe(TopicArn=caller.topic, Protocol="http", Endpoint=url.format(host))
    eventually(caller.seen, seconds=60, what="a confirmation")
    eventually(lambda: names.asked["confirm.example"], seconds=60, what="a lookup")
    assert {each.address for each in caller.seen()} == {PUBLIC}
