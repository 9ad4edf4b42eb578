"""The README's commands and programs are run as they stand, against a real server."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.server import Server

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:9324"
KAFKA_ADDRESS = "127.0.0.1:9092"
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


SHELL = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]
PROGRAMS = blocks("python")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("readme") / "data"
    with Server(folder, fsync="never", kafka_port=0) as running:
        yield running


def test_the_readme_has_commands_and_a_program() -> None:
    assert len(SHELL) > 10
    assert PROGRAMS


def test_the_programs_run(server: Server) -> None:
    for program in PROGRAMS:
        here = program.replace(ADDRESS, server.url).replace(KAFKA_ADDRESS, server.kafka)
        assert here != program
        done = subprocess.run(
            [sys.executable, "-c", here],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["first", "second"]


def test_the_commands_run(server: Server, tmp_path: Path) -> None:
    """Each line in the order of the page. `make`, `serve` and `cluster` have tests of their own:
    the last wants its own servers and no other's address (``test_cluster_cli.py``)."""
    programs = Path(sys.prefix) / "bin"
    script = ["set -eu"]
    script += [
        line.replace(ADDRESS, server.url)
        for line in SHELL
        if not line.startswith(("make ", "penstock serve", "penstock doctor", "penstock cluster"))
    ]
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{programs}:{programs.parent / 'awscli' / 'bin'}:{os.environ['PATH']}",
            "PENSTOCK_ENDPOINT": server.url,
        },
    )
    assert done.returncode == 0, done.stderr
    assert "resize image 17" in done.stdout
