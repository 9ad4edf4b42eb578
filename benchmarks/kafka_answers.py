"""``python -m benchmarks.kafka_answers``: the same requests to Apache Kafka 4.3 and to Penstock, on
one node and on three. Prints every difference between the replies; ten minutes.

The requests are in ``answers/``: ``access.py`` has those with authentication on, the other files
those with authentication off. Texts for people are counted apart. Differences that stay are in
``answers/known.py``, and with their reasons in docs/kafka.md; any other makes the exit status 1."""

import argparse
import itertools
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.attacks.kit import ROOT, Operator
from tests.harness.cluster import PenstockCluster
from tests.harness.server import Server

from benchmarks.answers.client import Client
from benchmarks.answers.compare import differences, is_text
from benchmarks.answers.known import is_known
from benchmarks.answers.question import Question
from benchmarks.answers.questions import questions
from benchmarks.apache_cluster import ApacheCluster
from benchmarks.server import NotAvailable

# How long nodes may take to know a change.
LAG_S_MAX: Final = 5.0
READS: Final = ("Describe", "List", "Metadata")  # in the name of an API
TOKENS_S: Final = 2.0  # until the nodes of both systems know a change of a token
_SECRETS: Final = {"root": "root-secret", "ann": "ann-secret"}
# Kafka with users root and ann, rules and tokens.
SECURED: Final = f"""listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.plaintext.scram-sha-512.sasl.jaas.config=\\
 org.apache.kafka.common.security.scram.ScramLoginModule required;
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.plaintext.plain.sasl.jaas.config=\
 org.apache.kafka.common.security.plain.PlainLoginModule required username="root"\
 password="{_SECRETS["root"]}" user_root="{_SECRETS["root"]}" user_ann="{_SECRETS["ann"]}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:root;User:ANONYMOUS
delegation.token.secret.key=secret
"""


class Counts:
    def __init__(self) -> None:
        self.questions = self.fields = self.known = self.texts = 0

    def __str__(self) -> str:
        differing = f"{self.fields} fields differ, {self.known} in known ways"
        return f"{self.questions} questions: {differing}; {self.texts} texts differ"


def compare(nodes: int, folder: Path, *, only: str, is_auth_on: bool) -> Counts:
    counts = Counts()
    with ExitStack() as stack:
        kafka = _apache(stack, folder / "apache", nodes, is_auth_on=is_auth_on)
        penstock = _penstock(stack, folder / "penstock", nodes, is_auth_on=is_auth_on)
        for question in questions(nodes, is_auth_on=is_auth_on):
            differing = _differing(kafka, penstock, question)
            if not only or only.lower() in question.title.lower():
                _show(question, differing, counts)
    return counts


# Path and both values as texts → the nodes that differ in this way.
Differing = dict[tuple[str, str, str], list[int]]


def _show(question: Question, differing: Differing, counts: Counts) -> None:
    counts.questions += 1
    lines = []
    for (path, before, now), nodes in differing.items():
        is_accepted = is_known(question.title, path)
        if is_text(path):
            counts.texts += 1
        elif is_accepted:
            counts.known += 1
        else:
            counts.fields += 1
        mark = "  known" if is_accepted else ""
        lines.append(f"    {path}: Kafka {before}, Penstock {now} (node {nodes}){mark}")
    print(f"{'differs' if lines else 'same   '}  {question.title}", *lines, sep="\n", flush=True)


def _differing(kafka: Client, penstock: Client, question: Question) -> Differing:
    """Reads are repeated for a while: nodes may be behind."""
    if question.api in ("RenewDelegationToken", "ExpireDelegationToken"):
        time.sleep(TOKENS_S)
    until = time.monotonic() + LAG_S_MAX
    is_read = any(text in question.api for text in READS)
    while True:
        theirs, ours = (system.replies(question) for system in (kafka, penstock))
        found: Differing = {}
        for place, reply in theirs.items():
            other = ours.get(place, "missing")
            for path, before, now in differences(reply, other, question.ignored):
                found.setdefault((path, repr(before), repr(now)), []).append(place)
        is_settled = all(is_text(path) or is_known(question.title, path) for path, _, _ in found)
        if is_settled or not is_read or time.monotonic() > until:
            return found
        time.sleep(0.2)


def _apache(stack: ExitStack, folder: Path, nodes: int, *, is_auth_on: bool) -> Client:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    login |= {"sasl.username": "root", "sasl.password": _SECRETS["root"]}
    apache = ApacheCluster(folder, nodes=nodes)
    if is_auth_on:
        apache = ApacheCluster(folder, nodes=nodes, config=SECURED, login=login)
    stack.enter_context(apache)
    logins = {name: (name, secret) for name, secret in _SECRETS.items()} if is_auth_on else {}
    return _closed(stack, Client(dict(enumerate(apache.ports, 1)), logins))


def _penstock(stack: ExitStack, folder: Path, nodes: int, *, is_auth_on: bool) -> Client:
    folder.mkdir(parents=True)
    env = {"PENSTOCK_NODE__MODE": "prod"}  # dev has shorter times of groups
    if is_auth_on:
        secret = folder / "secret"
        secret.write_text(str(ROOT.secret_key))
        secret.chmod(0o600)
        env |= {"PENSTOCK_AUTH__MODE": "on", "PENSTOCK_ROOT_KEY_ID": str(ROOT.access_key)}
        env["PENSTOCK_ROOT_SECRET_FILE"] = str(secret)
    servers: Mapping[int, Server]
    if nodes == 1:
        servers = {1: stack.enter_context(Server(folder / "data", kafka_port=0, env=env))}
    else:
        servers = stack.enter_context(PenstockCluster(folder, nodes=nodes, env=env)).nodes
    logins = {}
    if is_auth_on:
        operator = Operator(servers[1])
        operator.ask("POST", "users", {"name": "ann"})
        key = operator.ask("POST", "keys", {"user": "ann"})
        logins = {"root": (str(ROOT.access_key), str(ROOT.secret_key))}
        logins["ann"] = (key["key_id"], key["secret"])
    ports = {number: int(server.kafka_port or 0) for number, server in servers.items()}
    return _closed(stack, Client(ports, logins))


def _closed(stack: ExitStack, client: Client) -> Client:
    stack.callback(client.close)
    return client


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka_answers")
    parser.add_argument("--nodes", type=int, choices=(1, 3), help="only this number of nodes")
    parser.add_argument("--auth", choices=("on", "off"), help="only with authentication on or off")
    parser.add_argument("--only", default="", help="print only titles with this text")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all servers are stopped
    unknown = 0
    counts = (1, 3) if args.nodes is None else (args.nodes,)
    modes = ("off", "on") if args.auth is None else (args.auth,)
    for nodes, mode in itertools.product(counts, modes):
        label = f"{nodes} node{'s' if nodes > 1 else ''}, authentication {mode}"
        print(f"── {label}")
        with tempfile.TemporaryDirectory(prefix="answers-") as folder:
            is_auth_on = mode == "on"
            try:
                found = compare(nodes, Path(folder), only=args.only, is_auth_on=is_auth_on)
            except NotAvailable as error:
                sys.exit(f"Apache Kafka is not available: {error}")
        print(f"{label}: {found}")
        unknown += found.fields
    sys.exit(1 if unknown else 0)


if __name__ == "__main__":
    main()
