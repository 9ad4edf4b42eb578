"""Forked commands do what started ones do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness import forks
from tests.harness.forks import Forked, penstock_command, run

SECONDS_MAX = 120.0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["queue", "--help"], 0), (["queue", "lits"], 2), (["queue", "list"], 5), (["--version"], 0)],
)
def test_output_and_exit_code_are_those_of_the_command(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    command = [penstock_command(), *arguments]
    env = {**os.environ, "PENSTOCK_ENDPOINT": "http://127.0.0.1:9", "COLUMNS": "100"}
    forked = run(command, env=env, cwd=tmp_path)
    started = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert forked.returncode == started.returncode == code
    assert (forked.stdout, forked.stderr) == (started.stdout, started.stderr)


def test_a_fork_has_folder_and_umask_of_whoever_asks(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        command = [penstock_command(), "generate", "certs", "--out", "here"]
        assert run(command, cwd=tmp_path).returncode == 0
    finally:
        os.umask(before)
    assert (tmp_path / "here" / "ca.pem").stat().st_mode & 0o777 == 0o600


def test_a_fork_is_a_child_of_this_process_and_ends_by_signals(tmp_path: Path) -> None:
    command = [penstock_command(), "serve", "--data", str(tmp_path), "--http", "127.0.0.1:0"]
    with Forked(
        [*command, "--admin", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert any(line.startswith("ready") for line in server.stdout)
        stat = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        assert int(stat[1]) == os.getpid()
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=SECONDS_MAX)
    assert server.returncode == 0


def test_what_a_fork_cannot_do_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [penstock_command(), "serve"]
    monkeypatch.setattr(forks, "FULL", False)
    assert forks.is_forked(ours, os.environ)
    assert forks.is_forked(ours, {**os.environ, "PYTHONUNBUFFERED": "1"})
    assert not forks.is_forked(["prlimit", *ours], os.environ)
    assert not forks.is_forked([sys.executable, "-m", "penstock"], os.environ)
    assert not forks.is_forked(ours, {**os.environ, "LD_PRELOAD": "faults.so"})
    assert not forks.is_forked(ours, {**os.environ, "PYTHONDEVMODE": "1"})
    monkeypatch.setattr(forks, "FULL", True)
    assert not forks.is_forked(ours, os.environ)
