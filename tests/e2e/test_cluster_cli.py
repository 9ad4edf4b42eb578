"""``penstock cluster`` on real clusters: one with messages on their way while nodes are emptied and
restarted, and one that ``cluster up`` has started, which leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_cluster import Sender, client, drained, made
from tests.harness import forks
from tests.harness.cluster import PenstockCluster
from tests.harness.command import Done
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually
from tests.harness.server import penstock_command, stable_port

from penstock.cli.cluster.processes import ProcessId
from penstock.cli.terminal.failure import ExitCode

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]

SECONDS_MAX = 200.0
# What nodes note about themselves takes as long as a quorum does, which a last node waits for.
QUIET = {f"PENSTOCK_{part}__ENABLED": "false" for part in ("USAGE", "AUDIT", "TELEMETRY")}


def penstock(*args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> Done:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    done = forks.run([penstock_command(), *args], env={**inherited, **(env or {})}, cwd=cwd)
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    """Four nodes, so that one can be emptied although partitions are on three."""
    with PenstockCluster(tmp_path_factory.mktemp("cluster"), nodes=4) as cluster:
        yield cluster


def ask(cluster: PenstockCluster, *args: str, by: int = 1) -> Done:
    return penstock("cluster", *args, env={"PENSTOCK_ENDPOINT": cluster.nodes[by].url})


def healthy(cluster: PenstockCluster, *, by: int = 1) -> Any:
    """Once it is: what was created while nodes came gets its replicas in a moment."""
    return status(cluster, code=0, by=by)


def status(cluster: PenstockCluster, *, code: int, by: int = 1) -> Any:
    seen: list[Done] = []

    def is_so() -> bool:
        seen.append(ask(cluster, "status", by=by))
        return seen[-1].code == code

    try:
        eventually(is_so, seconds=SECONDS_MAX, what=f"status {code}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {seen[-1]}") from None
    return seen[-1].json


def held(cluster: PenstockCluster, node: int) -> int:
    members = {one["node"]: one for one in ask(cluster, "members").lines}
    return int(members[node]["replicas"])


def test_status_is_the_same_on_every_node_and_says_who_is_away(cluster: PenstockCluster) -> None:
    made(cluster, "status")
    found = healthy(cluster)
    assert [one["node"] for one in found["nodes"]] == [1, 2, 3, 4]
    assert found["nodes"][1]["http"] == cluster.nodes[2].url
    assert found["nodes"][1]["kafka"] == cluster.nodes[2].kafka
    assert healthy(cluster, by=3)["manager"] == found["manager"]
    cluster.nodes[4].kill()
    eventually(
        lambda: "node 4 (n4) declared dead, " in str(status(cluster, code=1)["problems"]),
        seconds=SECONDS_MAX,
        what="a node missed",
    )
    assert ask(cluster, "wait-safe", "--timeout", "0.5").code == ExitCode.TIMEOUT
    cluster.nodes[4].start()
    healthy(cluster)


def test_a_node_is_emptied_under_load_and_filled_again(cluster: PenstockCluster) -> None:
    path = made(cluster, "emptied")
    healthy(cluster)
    assert held(cluster, 3) > 0
    # As SDKs do: a leader that the manager moves may leave a send unanswered.
    sender = Sender([cluster.nodes[n].url for n in (1, 2, 4)], path, attempts=4)
    sender.start()
    sender.wait_for(20)
    done = ask(cluster, "decommission", "3", "--timeout", "60")
    assert (done.code, done.json["is_empty"]) == (0, True), done.err
    sender.wait_for(20)
    assert held(cluster, 3) == 0
    assert cluster.nodes[3].stop() == 0
    sender.wait_for(20)
    sender.end()
    assert not sender.failed, sender.failed[:3]
    url = cluster.nodes[1].url
    assert sender.answered <= drained(client(url, attempts=5), url + path)
    cluster.nodes[3].start()
    assert held(cluster, 3) == 0, "it stays empty until it is taken back"
    assert ask(cluster, "undrain", "3").code == 0
    eventually(lambda: held(cluster, 3) > 0, seconds=SECONDS_MAX, what="partitions on node 3")
    healthy(cluster)


def test_a_rolling_restart_waits_until_each_node_may_stop(cluster: PenstockCluster) -> None:
    path = made(cluster, "rolling")
    for victim, other in ((1, 2), (2, 1)):
        done = ask(cluster, "wait-safe", "--node", str(victim), "--timeout", "60", by=other)
        assert done.code == 0, done.err
        rest = [node.url for number, node in cluster.nodes.items() if number != victim]
        sender = Sender(rest, path, attempts=1)
        sender.start()
        sender.wait_for(10)
        assert cluster.nodes[victim].stop() == 0
        sender.wait_for(10)
        cluster.nodes[victim].start()
        sender.wait_for(10)
        sender.end()
        assert not sender.failed, sender.failed[:3]
        assert sender.answered <= drained(client(rest[0], attempts=5), rest[0] + path)


def test_leaders_go_back_and_what_was_done_is_in_the_audit_trail(cluster: PenstockCluster) -> None:
    healthy(cluster)
    assert ask(cluster, "rebalance").json["leaders_changed"] >= 0

    def are_first() -> bool:
        found = ask(cluster, "partitions", "--topic", "status").lines
        return bool(found) and all(one["leader"] == one["replicas"][0] for one in found)

    eventually(are_first, seconds=SECONDS_MAX, what="first replicas lead")

    wanted = {"admin:DecommissionNode", "admin:UndrainNode", "admin:RebalanceLeaders"}
    seen: list[Done] = []

    def missing() -> set[str]:
        tail = penstock(
            "message", "tail", "--topic", "__audit", "--from", "earliest", "--no-follow",
            env={"PENSTOCK_ENDPOINT": cluster.nodes[2].url},
        )  # fmt: skip
        seen.append(tail)
        return {action for action in wanted if f'"{action}"' not in tail.out.replace("\\", "")}

    try:
        eventually(lambda: not missing(), seconds=SECONDS_MAX, what="all three noted")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{trail_troubles(cluster, seen, missing())}") from None


def trail_troubles(cluster: PenstockCluster, seen: Sequence[Done], missing: set[str]) -> str:
    """Why entries may be missing, as far as anybody can tell from outside."""
    told = [f"missing: {sorted(missing)}; {len(seen)} looks, exit codes {[d.code for d in seen]}"]
    told.append(f"stderr of the last: {seen[-1].err}\n{len(seen[-1].out.splitlines())} lines")
    for number, node in cluster.nodes.items():
        lines = [line for line in node.stderr.splitlines() if "audit" in line or "facts" in line]
        told += [f"node {number}: {node.readyz()}", *lines[-20:]]
    told.append(str(ask(cluster, "status", by=2)))
    told += [str(one) for one in ask(cluster, "partitions", "--topic", "__audit", by=2).lines]
    return "\n".join(told)


def test_no_node_had_an_exception_that_nobody_expected(cluster: PenstockCluster) -> None:
    """Over all that happened to them above."""
    for node in cluster.nodes.values():
        node.assert_no_traceback()


def test_up_starts_a_cluster_that_goes_on_after_down_and_leaves_no_process(tmp_path: Path) -> None:
    base = stable_port()
    folder = tmp_path / "c"
    up = ("cluster", "up", "--detach", "--data", str(folder), "--port-base", str(base))
    done = penstock(*up, env=QUIET)
    assert done.code == 0, done.err
    try:
        assert [line["name"] for line in done.lines] == ["n1", "n2", "n3"]
        processes = [
            ProcessId(*one)
            for one in json.loads((folder / "running.json").read_text())["processes"]
        ]
        assert len(processes) == 4
        assert all(one.is_alive for one in processes)
        endpoint = {"PENSTOCK_ENDPOINT": done.lines[1]["http"]}
        assert penstock("cluster", "status", env=endpoint).code == 0
        assert penstock("queue", "create", "jobs", env=endpoint).code == 0
        assert penstock("message", "send", "jobs", "hello", env=endpoint).code == 0
        os.kill(processes[1].pid, 9)
        eventually(lambda: not processes[1].is_alive, seconds=120, what="n1 gone")
        assert penstock(*up, env=QUIET).code == 0, "starts the one that is missing"
    finally:
        stopped = penstock("cluster", "down", "--data", str(folder))
    assert stopped.code == 0, stopped.err
    assert stopped.json["stopped"][-1] == "etcd"
    assert not any(one.is_alive for one in processes)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", base)) != 0
    try:
        assert penstock("cluster", "up", "--detach", "--data", str(folder), env=QUIET).code == 0
        received = penstock("message", "receive", "jobs", "--wait", "5", env=endpoint)
        assert "hello" in received.out, received.err
    finally:
        assert penstock("cluster", "down", "--data", str(folder)).code == 0
    for log in (folder / "logs").iterdir():
        assert "Traceback" not in log.read_text("utf-8", "replace"), log


def test_ctrl_c_ends_a_cluster_in_the_foreground_in_order(tmp_path: Path) -> None:
    base = stable_port()
    env = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    command = [penstock_command(), "cluster", "up", "--nodes", "1", "--port-base", str(base)]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path / "c")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**env, **QUIET},
    ) as up:
        assert up.stdout is not None
        assert json.loads(up.stdout.readline())["name"] == "n1"
        kept = json.loads((tmp_path / "c" / "running.json").read_text())
        processes = [ProcessId(*one) for one in kept["processes"]]
        assert [one.name for one in processes] == ["up", "etcd", "n1"]
        up.send_signal(signal.SIGINT)
        _, said = up.communicate(timeout=SECONDS_MAX)
    assert up.returncode == 0, said
    assert said.splitlines()[-2:] == ["n1 has stopped", "etcd has stopped"]
    assert not any(one.is_alive for one in processes)
