"""The doctor finds what is wrong, and only then says so with its exit code."""

import socket
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import Cli, Endpoint

from penstock.cli.clients.contexts import Settings
from penstock.cli.command import Session
from penstock.cli.operate import doctor
from penstock.cli.terminal.failure import ExitCode
from penstock.model.troubles import DISK_FULL, NO_OPERATOR


@pytest.fixture(autouse=True)
def free_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HTTP__LISTEN", "127.0.0.1:0")


def checks(report: Any) -> dict[str, str]:
    return {check["check"]: check["status"] for check in report["checks"]}


def test_a_sound_machine_is_healthy_and_nothing_is_left_behind(cli: Cli, tmp_path: Path) -> None:
    result = cli("doctor", "--local", "--data", str(tmp_path / "data"))
    assert result.code == 0
    assert result.json["healthy"] is True
    found = checks(result.json)
    assert found["fsync"] in ("ok", "warn")
    assert found["settings"] == found["clock"] == "ok"
    origins = {row["key"]: row["origin"] for row in result.json["config"]}
    assert origins["http.listen"] == "env PENSTOCK_HTTP__LISTEN"
    assert origins["log.fsync"] == "default"
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_exit_8(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("PENSTOCK_HTTP__LISTEN", address)
        result = cli("doctor", "--local", "--data", str(tmp_path))
    assert result.code == ExitCode.UNHEALTHY
    assert checks(result.json)[f"port {address}"] == "fail"


def test_a_wrong_setting_is_exit_8_and_named(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "penstock.toml"
    path.write_text("[log]\nfsnyc = 'always'\n")
    result = cli("doctor", "--local", "--config", str(path))
    assert result.code == ExitCode.UNHEALTHY
    assert "log.fsync" in result.out


def test_a_data_folder_that_is_a_file_is_exit_8(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert cli("doctor", "--local", "--data", str(path)).code == ExitCode.UNHEALTHY


def server_info(**more: Any) -> dict[str, Any]:
    info = {"state": "ready", "is_ready": True, "version": "0.1", "reasons": []}
    return {**info, "now_ms": int(time.time() * 1_000), **more}


def test_a_running_server_is_asked_for_its_settings(
    cli: Cli, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The answer is made before the question here, however long that takes to be asked.
    monkeypatch.setattr(doctor, "CLOCK_SKEW_MS_MAX", 60_000)
    row = {"key": "node.data", "value": str(tmp_path), "origin": "flag node.data"}
    endpoint.paths["/api/v1/info"] = server_info(data=str(tmp_path))
    endpoint.paths["/api/v1/config"] = {"settings": [row]}
    result = cli("doctor")
    assert result.code == 0
    assert result.json["config"] == [row]
    assert checks(result.json)[f"disk {tmp_path}"] in ("ok", "warn")


@pytest.mark.parametrize(
    "more",
    [
        {"is_ready": False, "state": "draining"},
        {"reasons": [{"name": "partition 0", "text": "damaged", "is_blocking": False}]},
        {"now_ms": 1_700_000_000_000},
    ],
)
def test_a_server_that_is_not_well_is_exit_8(
    cli: Cli, endpoint: Endpoint, tmp_path: Path, more: dict[str, Any]
) -> None:
    endpoint.paths["/api/v1/info"] = server_info(data=str(tmp_path), **more)
    endpoint.paths["/api/v1/config"] = {"settings": []}
    assert cli("doctor", "--data", str(tmp_path)).code == ExitCode.UNHEALTHY


def test_no_server_is_wrong_only_where_one_was_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    named = cli("doctor", "--endpoint", "http://127.0.0.1:1", "--data", str(tmp_path))
    assert named.code == ExitCode.UNHEALTHY
    assert checks(named.json)["server"] == "fail"
    monkeypatch.delenv("PENSTOCK_ENDPOINT")
    settings = Settings(endpoint="http://127.0.0.1:1")
    data = str(tmp_path)
    found, _ = doctor.examine(Session(settings), data=data, config_file=None, is_local=False)
    assert {item.check: item.status for item in found}["server"] == "ok"


def test_a_table_shows_checks_and_settings(cli: Cli, tmp_path: Path) -> None:
    text = cli("doctor", "--local", "--data", str(tmp_path), "-o", "table").out
    assert "FINDING" in text
    assert "http.listen" in text
    assert "env PENSTOCK_HTTP__LISTEN" in text
    assert "log.fsync" not in text, "it has its default"
    assert "settings have the default" in text


def test_troubles_of_the_server_are_told_in_its_own_words(
    cli: Cli, endpoint: Endpoint, tmp_path: Path
) -> None:
    trouble = DISK_FULL.filled(free_bytes=7, reserve_bytes=5)
    reason = {"kind": trouble.kind, "name": trouble.name, "text": trouble.text, "do": trouble.do}
    endpoint.paths["/api/v1/info"] = server_info(data=str(tmp_path), reasons=[reason])
    endpoint.paths["/api/v1/config"] = {"settings": []}
    result = cli("doctor")
    assert result.code == ExitCode.UNHEALTHY
    (found,) = [one for one in result.json["checks"] if one["check"] == "disk"]
    assert (found["status"], found["detail"], found["fix"]) == ("fail", trouble.text, trouble.do)
    assert checks(result.json)[f"disk {tmp_path}"] == "ok", "the same is not said twice"


def test_a_server_without_an_operator_says_so_to_everybody(cli: Cli, endpoint: Endpoint) -> None:
    trouble = NO_OPERATOR
    reason = {"kind": trouble.kind, "name": trouble.name, "text": trouble.text, "do": trouble.do}
    denied = {"error": {"code": "access_denied", "message": "Only an operator may do this."}}
    endpoint.paths["/api/v1/info"] = (403, denied)
    endpoint.paths["/readyz"] = {"status": "ready", "reasons": [reason]}
    result = cli("doctor")
    assert result.code == ExitCode.UNHEALTHY
    assert "no operator has an access key" in result.out
    assert "PENSTOCK_ROOT_KEY_ID" in result.out


@pytest.mark.parametrize(("reserve", "status"), [("1", "ok"), (str(1 << 40), "fail")])
def test_the_disk_is_compared_with_the_reserve_that_is_set(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reserve: str, status: str
) -> None:
    monkeypatch.setenv("PENSTOCK_LOG__DISK_RESERVE_BYTES", reserve)
    monkeypatch.setattr(doctor, "_FREE_WANTED_BYTES", 0)
    result = cli("doctor", "--local", "--data", str(tmp_path))
    assert checks(result.json)[f"disk {tmp_path}"] == status
