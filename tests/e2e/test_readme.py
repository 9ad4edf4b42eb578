"""The README's commands and programs are run as they stand, against a real server."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.server import Server, stable_port

ROOT = Path(__file__).parents[2]
LINES_MAX = 150
ADDRESS = "http://127.0.0.1:9324"
KAFKA_ADDRESS = "127.0.0.1:9092"
README = (ROOT / "README.md").read_text("utf-8")


ELSEWHERE = ("make ", "pip ", ". .venv", "penstock doctor")  # these lines have tests of their own
USERS = re.search(r"^## Users.*?(?=^## )", README, re.MULTILINE | re.DOTALL)[0]  # type: ignore[index]
BEFORE_USERS = README[: README.index(USERS)]


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


PROGRAMS = blocks("python")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("readme") / "data"
    with Server(folder, fsync="never", kafka_port=0) as running:
        yield running


def test_the_readme_has_commands_and_programs() -> None:
    assert len(_commands(BEFORE_USERS)) > 8
    assert len(_commands(USERS)) > 4
    assert len(PROGRAMS) > 1
    assert README.count("\n") <= LINES_MAX


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs_twice(server: Server, program: str) -> None:
    here = program.replace(ADDRESS, server.url).replace(KAFKA_ADDRESS, server.kafka)
    assert here != program
    for _ in range(2):
        done = _run([sys.executable, "-W", "ignore::ResourceWarning", "-c", here])
        words = [word for word in done.split() if word in ("first", "second")]
        assert words[:2] == ["first", "second"]


def test_the_commands_run(server: Server, tmp_path: Path) -> None:
    """Each line in the order of the page, up to the users. `make`, `pip` and `doctor` (which looks
    at the folder of a server with default settings) have tests of their own."""
    done = _run_lines(_commands(BEFORE_USERS), tmp_path, {"PENSTOCK_ENDPOINT": server.url})
    assert "resize image 17" in done


def test_the_commands_for_users_run(tmp_path: Path) -> None:
    """Certificates, a server that prints the key of its operator, then users: as on the page."""
    lines = _commands(USERS)
    serve = next(line for line in lines if line.startswith("penstock serve"))
    _run_lines(lines[: lines.index(serve)], tmp_path, {})
    arguments = shlex.split(serve)[2:]
    port = stable_port()
    here = [one.replace("9324", str(port)).replace("./", f"{tmp_path}/") for one in arguments]
    with Server(tmp_path / "data", port=port, kafka_port=0, arguments=here) as server:
        key = dict(re.findall(r"^ *(aws_\w+) = (\S+)$", server.stdout, re.MULTILINE))
        env = {
            "PENSTOCK_KEY_ID": key["aws_access_key_id"],
            "PENSTOCK_SECRET": key["aws_secret_access_key"],
        }
        after = [
            line.replace("https://127.0.0.1:9324", f"https://127.0.0.1:{server.port}")
            for line in lines[lines.index(serve) + 1 :]
            if "…" not in line
        ]
        assert "allow" in _run_lines(after, tmp_path, env)
        # Whoever followed the page can go on as an operator.
        assert "bob" in _run_lines([*after[:1], "penstock user create bob"], tmp_path, env)


def _commands(section: str) -> list[str]:
    lines = [line for block in blocks("sh", section) for line in block.splitlines()]
    return [line for line in lines if not line.startswith(ELSEWHERE)]


def _run_lines(lines: list[str], folder: Path, env: dict[str, str]) -> str:
    programs = Path(sys.prefix) / "bin"
    path = f"{programs}:{programs.parent / 'awscli' / 'bin'}:{os.environ['PATH']}"
    script = "\n".join(["set -eu", *lines])
    return _run(["bash", "-c", script], cwd=folder, env={**os.environ, "PATH": path, **env})


def _run(command: list[str], **more: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **more)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)
