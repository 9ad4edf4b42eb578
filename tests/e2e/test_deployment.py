"""The files of ``penstock generate`` for systemd, Docker, Compose and Kubernetes: read by the tools
that they are for, and their command lines started for real."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config as ClientConfig
from tests.harness.deployment import (
    documents,
    generated,
    image_environment,
    instructions,
    run,
    settings_of,
    tool,
)
from tests.harness.patience import eventually

from penstock import __version__
from penstock.node.configuration import config as node_config
from penstock.node.workers import STOP_SECONDS_MAX

READY_SECONDS_MAX = 200.0
EXPOSURE_MAX = 2.0  # of `systemd-analyze security`, from 0 (locked away) to 10


def unit_values(unit: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit, re.MULTILINE)


@pytest.fixture
def notify_socket(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(READY_SECONDS_MAX)
        yield listening


def started(command: list[str], folder: Path, env: dict[str, str]) -> "subprocess.Popen[str]":
    """With nothing of the caller's settings; the log goes to ``folder``."""
    clean = {name: value for name, value in os.environ.items() if "PENSTOCK" not in name}
    # The command of the image and of the unit is the one of this environment.
    clean["PATH"] = f"{Path(sys.prefix) / 'bin'}:{clean['PATH']}"
    with (folder / "server.log").open("ab") as log:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env={**clean, **env}
        )


def ready_line(process: "subprocess.Popen[str]", folder: Path) -> dict[str, str]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready "):
            return dict(field.split("=", 1) for field in line.split()[1:])
    raise AssertionError((folder / "server.log").read_text())


def ended(process: "subprocess.Popen[str]") -> int:
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(30)
    finally:
        process.kill()
        if process.stdout is not None:
            process.stdout.close()


# ── systemd ──────────────────────────────────────────────────────────────────────────────────


def test_systemd_reads_the_unit_and_finds_it_closed(tmp_path: Path) -> None:
    unit = tmp_path / "penstock.service"
    unit.write_text(generated("systemd"))
    done = run(tool("systemd-analyze"), "verify", str(unit))
    assert (done.returncode, done.stderr) == (0, "")
    judged = run(tool("systemd-analyze"), "security", "--offline=true", str(unit)).stdout
    exposure = re.search(r"exposure level for penstock.service: ([\d.]+)", judged)
    assert exposure is not None, judged
    assert float(exposure[1]) <= EXPOSURE_MAX, judged


def test_the_unit_waits_longer_than_a_drain_takes() -> None:
    (seconds,) = unit_values(generated("systemd"), "TimeoutStopSec")
    drain_ms = node_config.Config().node.drain_ms
    assert float(seconds) > STOP_SECONDS_MAX + drain_ms / 1_000


@pytest.mark.parametrize("more", [{}, {"PENSTOCK_NODE__WORKERS": "2"}], ids=["one", "workers"])
def test_the_units_command_tells_systemd_when_it_is_ready_and_when_it_stops(
    tmp_path: Path, notify_socket: socket.socket, more: dict[str, str]
) -> None:
    unit = generated("systemd")
    (command,) = unit_values(unit, "ExecStart")
    (setting,) = unit_values(unit, "Environment")
    env = dict([setting.split("=", 1)])
    for listener in ("HTTP", "KAFKA", "ADMIN"):
        env[f"PENSTOCK_{listener}__LISTEN"] = "127.0.0.1:0"
    env["NOTIFY_SOCKET"] = notify_socket.getsockname()
    process = started(shlex.split(command.replace("%S", str(tmp_path))), tmp_path, {**env, **more})
    try:
        assert notify_socket.recv(1_000) == b"READY=1"
        at = ready_line(process, tmp_path)
        host, _, port = at["http"].removeprefix("http://").partition(":")
        socket.create_connection((host, int(port)), timeout=10).close()
    finally:
        code = ended(process)
    assert code == 0
    # Nothing between the two: of workers only the process that systemd started reports.
    assert notify_socket.recv(1_000) == b"STOPPING=1"
    assert (tmp_path / "penstock").stat().st_mode & 0o777 == 0o700


# ── Docker ───────────────────────────────────────────────────────────────────────────────────


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = run(tool("hadolint"), "-", input=generated("docker"))
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_runs_as_a_user_with_one_volume_and_is_told_to_drain() -> None:
    last = instructions(generated("docker"))
    assert ("USER", "10001:10001") in last
    assert [rest for word, rest in last if word == "VOLUME"] == ['["/data"]']
    assert ("STOPSIGNAL", "SIGTERM") in last
    assert last[0][1].endswith("-slim")


def entry_point(dockerfile: str) -> list[str]:
    said = dict(instructions(dockerfile))
    return [*json.loads(said["ENTRYPOINT"]), *json.loads(said["CMD"])]


def test_the_image_refuses_to_serve_other_machines_without_tls(tmp_path: Path) -> None:
    dockerfile = generated("docker")
    env = {**image_environment(dockerfile), "PENSTOCK_NODE__DATA": str(tmp_path / "data")}
    process = started(entry_point(dockerfile), tmp_path, env)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 2, "the same code tells systemd not to restart"
    assert "there is no TLS" in (tmp_path / "server.log").read_text()


def test_the_health_check_of_the_image_follows_the_server(tmp_path: Path) -> None:
    dockerfile = generated("docker")
    (compose,) = documents(generated("compose"))
    env = {
        **image_environment(dockerfile),
        **settings_of(compose["services"]["penstock"]["environment"]),
        "PENSTOCK_NODE__DATA": str(tmp_path / "data"),
    }
    for listener in ("HTTP", "KAFKA", "ADMIN"):
        env[f"PENSTOCK_{listener}__LISTEN"] = "0.0.0.0:0"
    process = started(entry_point(dockerfile), tmp_path, env)
    try:
        port = ready_line(process, tmp_path)["admin"].rpartition(":")[2]
        (check,) = [rest for word, rest in instructions(dockerfile) if word == "HEALTHCHECK"]
        command = json.loads(check[check.index("[") :].replace(":9325/", f":{port}/"))
        command[0] = sys.executable
        assert run(*command).returncode == 0
    finally:
        code = ended(process)
    assert code == 0
    assert run(*command).returncode != 0


# ── Compose and Kubernetes ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("nodes", ["1", "3"])
def test_the_compose_file_follows_the_specification(tmp_path: Path, nodes: str) -> None:
    file = tmp_path / "compose.yml"
    file.write_text(generated("compose", "--nodes", nodes))
    schema = ("--builtin-schema", "vendor.compose-spec")
    done = run(tool("check-jsonschema"), *schema, str(file))
    assert done.returncode == 0, done.stdout
    (compose,) = documents(file.read_text())
    image = image_environment(generated("docker"))
    for service in compose["services"].values():
        if service.get("image") == f"penstock:{__version__}" and "entrypoint" not in service:
            # Raises for a setting that does not exist, and for values that do not go together.
            node_config.load({}, {**image, **settings_of(service["environment"])})
            assert float(service["stop_grace_period"].removesuffix("s")) > STOP_SECONDS_MAX


def test_the_manifests_follow_the_schemas_of_kubernetes(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yml"
    file.write_text(generated("kubernetes"))
    done = run(tool("kubernetes-validate"), "--strict", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    kinds = [document["kind"] for document in documents(file.read_text())]
    assert sorted(kinds) == sorted(
        ["ConfigMap", "PodDisruptionBudget", "Service", "Service", "StatefulSet"]
    )


def container() -> tuple[dict[str, Any], dict[str, Any], str]:
    """The pod's specification, its container, and the configuration file."""
    found = documents(generated("kubernetes"))
    (stateful,) = [one for one in found if one["kind"] == "StatefulSet"]
    (configured,) = [one for one in found if one["kind"] == "ConfigMap"]
    pod = stateful["spec"]["template"]["spec"]
    return pod, pod["containers"][0], configured["data"]["penstock.toml"]


def pod_environment(name: str) -> dict[str, str]:
    _, one, _ = container()
    found = {"PENSTOCK_NODE__NAME": name}
    for entry in one["env"]:
        if "value" in entry:
            found[entry["name"]] = entry["value"].replace("$(PENSTOCK_NODE__NAME)", name)
    return found


def test_the_settings_of_a_pod_are_those_of_a_node(tmp_path: Path) -> None:
    _, one, text = container()
    tomllib.loads(text)
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    env = {**image_environment(generated("docker")), **pod_environment("penstock-2")}
    # The command of the pod, with a program that prints what it was given.
    (tmp_path / "penstock").write_text('#!/bin/sh\necho "$PENSTOCK_CLUSTER__NODE" "$@"\n')
    (tmp_path / "penstock").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    said = run(*one["command"], *one["args"], env={**env, "PATH": path}).stdout.split()
    assert said == ["3", "serve", "--config", "/etc/penstock/config/penstock.toml"]
    loaded = node_config.load({}, {**env, "PENSTOCK_CLUSTER__NODE": said[0]}, [file]).config
    assert loaded.internal.advertised == "penstock-2.penstock-nodes:9400"
    assert loaded.internal.certificate.endswith("/penstock-2.pem")
    assert loaded.node.data == "/data/penstock"


def test_a_pod_is_given_the_time_that_its_stop_takes() -> None:
    pod, one, text = container()
    drain_ms = tomllib.loads(text)["node"]["drain_ms"]
    waits = re.search(r"--timeout (\d+)", " ".join(one["lifecycle"]["preStop"]["exec"]["command"]))
    assert waits is not None
    needed = int(waits[1]) + drain_ms / 1_000 + STOP_SECONDS_MAX
    assert pod["terminationGracePeriodSeconds"] > needed


# ── The cluster of the Compose file, as processes ────────────────────────────────────────────

HOSTS = {"n1": "127.0.0.41", "n2": "127.0.0.42", "n3": "127.0.0.43", "etcd": "127.0.0.44"}


def here(text: str, folder: Path, own: str = "") -> str:
    """Names of containers become loopback addresses, folders of volumes those of the test."""
    text = text.replace("/etc/penstock", str(folder / "secrets"))
    text = text.replace("/var/lib/etcd", str(folder / "etcd")).replace("$$", "$")
    if own:
        text = text.replace("0.0.0.0", HOSTS[own]).replace("localhost", HOSTS[own])
    for name, address in HOSTS.items():
        text = re.sub(rf"(?<=[/:]){name}(?=:\d)|^{name}(?=:\d)", address, text)
    return text


@pytest.mark.slow
def test_the_nodes_of_the_compose_file_are_a_cluster(tmp_path: Path) -> None:
    (compose,) = documents(generated("compose", "--nodes", "3"))
    services = compose["services"]
    (tmp_path / "secrets").mkdir(mode=0o700)
    (tmp_path / "etcd").mkdir(mode=0o700)
    script = here(services["setup"]["command"][0], tmp_path)
    for name, address in HOSTS.items():
        script = script.replace(f"--host {name} ", f"--host {address} ")
    script = script.replace("--host $name", '--host "$(eval echo \\$$name)"')
    path = f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"
    done = run("/bin/sh", "-euc", script, env={**os.environ, **HOSTS, "PATH": path})
    assert done.returncode == 0, done.stderr
    processes = []
    try:
        etcd = [here(word, tmp_path, "etcd") for word in services["etcd"]["command"]]
        peers = "http://127.0.0.44:2380"
        processes.append(started([*etcd, f"--listen-peer-urls={peers}"], tmp_path, {}))
        image = image_environment(generated("docker"))
        nodes = {}
        for name in ("n1", "n2", "n3"):
            env = {**image, **settings_of(services[name]["environment"])}
            env = {key: here(value, tmp_path, name) for key, value in env.items()}
            # On loopback addresses authentication is off unless asked for.
            env |= {"PENSTOCK_NODE__DATA": str(tmp_path / name), "PENSTOCK_AUTH__MODE": "on"}
            nodes[name] = started(["penstock", "serve"], tmp_path, env)
            processes.append(nodes[name])
        for node in nodes.values():
            ready_line(node, tmp_path)
        _use(tmp_path)
    finally:
        codes = [ended(process) for process in reversed(processes)]
    assert codes[:3] == [0, 0, 0], (tmp_path / "server.log").read_text()[-3_000:]


def _use(folder: Path) -> None:
    """Send through one node, receive through another; stop a node as the pod's hook asks."""
    secret = (folder / "secrets" / "root-secret").read_text().strip()
    ca = str(folder / "secrets" / "clients" / "ca.pem")
    clients = [
        boto3.client(
            "sqs",
            endpoint_url=f"https://{HOSTS[name]}:9324",
            region_name="us-east-1",
            aws_access_key_id="PSAKCOMPOSEROOTKEY01",
            aws_secret_access_key=secret,
            verify=ca,
            config=ClientConfig(retries={"max_attempts": 5}),
        )
        for name in ("n1", "n3")
    ]
    url = clients[0].create_queue(QueueName="jobs")["QueueUrl"]
    clients[0].send_message(QueueUrl=url, MessageBody="over TLS")

    def received() -> bool:
        found = clients[1].receive_message(QueueUrl=url, WaitTimeSeconds=1).get("Messages", [])
        return [message["Body"] for message in found] == ["over TLS"]

    eventually(received, seconds=120, what="the message on another node")
    env = {name: value for name, value in os.environ.items() if "PENSTOCK" not in name}
    env |= {
        **pod_environment("penstock-0"),
        "PATH": f"{Path(sys.prefix) / 'bin'}:{env['PATH']}",
        "PENSTOCK_ENDPOINT": f"https://{HOSTS['n1']}:9324",
        "PENSTOCK_ADMIN": f"https://{HOSTS['n1']}:9325",
        "PENSTOCK_CA_FILE": ca,
        "PENSTOCK_KEY_ID": "PSAKCOMPOSEROOTKEY01",
        "PENSTOCK_SECRET": secret,
    }
    _, one, _ = container()
    done = run(*one["lifecycle"]["preStop"]["exec"]["command"], env=env)
    assert done.returncode == 0, done.stderr
    assert '"node":1' in done.stdout.replace(" ", ""), done.stdout
