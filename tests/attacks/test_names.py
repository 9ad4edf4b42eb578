"""Names that want to be paths, markup or somebody else's: none is taken, in no protocol, and none
of those that are taken ever becomes the name of a file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from urllib.parse import quote, urlsplit

import pytest
from tests.attacks.frames import Wire
from tests.attacks.kit import send
from tests.harness.client import Fault, RawClient
from tests.harness.raw_http import RawConnection, form_request
from tests.harness.server import Server

from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.create_topics import CreatableTopic

# Not taken by SQS, not by Kafka.
NOWHERE = {
    "parent": "..",
    "this": ".",
    "climbing": "../../etc/passwd",
    "climbing-encoded": "%2e%2e%2fx",
    "climbing-backwards": "..\\x",
    "absolute": "/etc/passwd",
    "nul": "a\0b",
    "newline": "a\nb",
    "carriage-return": "a\rb",
    "terminal": "a\x1b[31mb",
    "blank": "a b",
    "empty": "",
    "markup": "<script>alert(1)</script>",
    "quote": "a'b\"c",
    "format": "{0.__class__}%s%n",
    "umlaut": "q\u00fceue",
    "look-alike": "qu\u0435ue",  # a Cyrillic letter
    "full-width": "\uff51ueue",
    "combining": "queu\u0065\u0301",
    "right-to-left": "a\u202eb",
    "zero-width": "a\u200bb",
    "dotless-i": "queue\u0131",
}
# Taken by one of them only; here not by SQS.
NOT_A_QUEUE = {
    **NOWHERE,
    "81-characters": "q" * 81,
    "81-characters-of-a-fifo-queue": "q" * 76 + ".fifo",
    "a-million-characters": "q" * 1_000_000,
    "dotted": "a.b",
    "suffix-in-capitals": "q.FIFO",
    "two-suffixes": "q.fifo.fifo",
    "suffix-alone": ".fifo",
    "colon": "a:b",
    "slash": "a/b",
}


@pytest.mark.parametrize("attack", NOT_A_QUEUE)
def test_a_name_that_is_none_is_refused_in_json(bystander: RawClient, attack: str) -> None:
    attributes = {"FifoQueue": "true"} if NOT_A_QUEUE[attack].lower().endswith("fifo") else {}
    asked = {"QueueName": NOT_A_QUEUE[attack], "Attributes": attributes}
    with pytest.raises(Fault) as caught:
        bystander.call("CreateQueue", asked)
    assert caught.value.status == 400
    assert len(caught.value.message) < 1_000, "the name is not repeated in full"
    with pytest.raises(Fault) as caught:
        bystander.call("GetQueueUrl", {"QueueName": NOT_A_QUEUE[attack]})
    assert 400 <= caught.value.status < 500


@pytest.mark.parametrize("attack", NOT_A_QUEUE)
def test_a_name_that_is_none_is_refused_in_a_form(
    open_server: Server, bystander: RawClient, attack: str
) -> None:
    body = f"Action=CreateQueue&QueueName={quote(NOT_A_QUEUE[attack], safe='')}"
    if NOT_A_QUEUE[attack].lower().endswith("fifo"):
        body += "&Attribute.1.Name=FifoQueue&Attribute.1.Value=true"
    with RawConnection(open_server.port) as connection:
        connection.send(form_request(body.encode()))
        reply = connection.read_reply()
    assert reply.statuses == [400], reply.data[:300]
    for spelling in (b"<script", b"\x1b", b"\0"):
        assert spelling not in reply.data


@pytest.mark.parametrize("attack", NOWHERE)
def test_a_name_that_is_none_is_refused_by_kafka(
    open_server: Server, bystander: RawClient, attack: str
) -> None:
    topic = CreatableTopic(name=NOWHERE[attack], num_partitions=1, replication_factor=1)
    with Wire(open_server) as wire:
        reply = wire.ask("CreateTopics", 7, topics=[topic], timeout_ms=5_000)
    assert reply.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert len(reply.topics[0].error_message or "") < 1_000


# The node keeps its own facts in these; clients may not make, fill or remove them.
@pytest.mark.parametrize(
    "name", ["__consumer_offsets", "__transaction_state", "__usage", "__audit"]
)
def test_names_of_the_nodes_own_topics_cannot_be_had(
    open_server: Server, bystander: RawClient, name: str
) -> None:
    with pytest.raises(Fault) as caught:
        bystander.call("SendMessage", {"QueueUrl": f"/000000000000/{name}", "MessageBody": "x"})
    assert caught.value.status == 400
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    with Wire(open_server) as wire:
        made = wire.ask("CreateTopics", 7, topics=[topic], timeout_ms=5_000)
        assert made.topics[0].error_code != 0
        gone = wire.ask("DeleteTopics", 5, topic_names=[name], timeout_ms=5_000)
        assert gone.responses[0].error_code != 0


URLS = (
    "http://x/000000000000/../../admin",
    "http://x/000000000000/%2e%2e%2fadmin",
    "http://x/000000000000/a%00b",
    "http://x/../000000000000/a",
    "file:///etc/passwd",
    "http://169.254.169.254/latest/meta-data",
    "//000000000000//a",
    "/000000000000/a?b",
    "/000000000000/a#b",
    "x" * 5_000,
)


@pytest.mark.parametrize("url", URLS, ids=lambda url: str(url)[:40])
def test_a_queue_url_is_a_name_and_never_followed(bystander: RawClient, url: str) -> None:
    with pytest.raises(Fault) as caught:
        bystander.call("SendMessage", {"QueueUrl": url, "MessageBody": "x"})
    assert 400 <= caught.value.status < 500


def test_case_makes_another_queue(bystander: RawClient, name: Callable[..., str]) -> None:
    lower = name()
    bystander.call("CreateQueue", {"QueueName": lower})
    with pytest.raises(Fault):
        bystander.call("GetQueueUrl", {"QueueName": lower.upper()})


def test_no_name_becomes_a_file(
    open_server: Server, bystander: RawClient, name: Callable[..., str]
) -> None:
    """Folders are called by ids that the node drew."""
    planted = [name("-on-disk"), name("-on-disk.fifo")]
    for each in planted:
        fifo = {"FifoQueue": "true"} if each.endswith(".fifo") else {}
        url = bystander.call("CreateQueue", {"QueueName": each, "Attributes": fifo})["QueueUrl"]
        group = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if fifo else {}
        bystander.call("SendMessage", {"QueueUrl": url, "MessageBody": "x", **group})
    with Wire(open_server) as wire:
        planted.append(name("-on-disk.stream"))
        topic = CreatableTopic(name=planted[-1], num_partitions=2, replication_factor=1)
        made = wire.ask("CreateTopics", 7, topics=[topic], timeout_ms=5_000)
        assert made.topics[0].error_code == 0
    paths = [str(path.relative_to(open_server.data)) for path in open_server.data.rglob("*")]
    assert not [path for path in paths if "on-disk" in path]
    folders = [path for path in (open_server.data / "topics").iterdir() if path.is_dir()]
    assert len(folders) >= 3
    assert all(re.fullmatch(r"[0-9a-f]{32}|[0-9a-f-]{36}", folder.name) for folder in folders)


def test_the_admin_api_takes_names_for_names(open_server: Server) -> None:
    host = urlsplit(open_server.admin_url).netloc
    for attack in NOWHERE.values():
        path = f"/api/v1/queues/{quote(attack, safe='')}"
        status, answer, headers = send(host, "GET", path, None, {})
        assert status in (400, 404) or attack == "", f"{attack!r}: {status}"
        assert headers["content-type"] == "application/json"
        json.loads(answer)
