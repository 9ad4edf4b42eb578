"""The commands and programs of the README and the shell blocks of docs/ are run as they stand,
against a real server."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.endpoint import Endpoint
from tests.harness.server import Server, stable_port

ROOT = Path(__file__).parents[2]
LINES_MAX = 150
ADDRESS = "http://127.0.0.1:9324"
KAFKA_ADDRESS = "127.0.0.1:9092"
HOOK = "http://127.0.0.1:8000/hook"
README = (ROOT / "README.md").read_text("utf-8")


ELSEWHERE = ("make ", "pip ", ". .venv", "penstock doctor")  # these lines have tests of their own
USERS = re.search(r"^## Users.*?(?=^## )", README, re.MULTILINE | re.DOTALL)[0]  # type: ignore[index]
BEFORE_USERS = README[: README.index(USERS)]
SECURITY = (ROOT / "docs" / "security.md").read_text("utf-8").partition("\n## What is tried")[0]

# What a page does not show: why tests do not run the next block, or what they run before it.
GUIDE_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>not run|before): (?P<said>[^\n]*) -->\n)?```sh\n(?P<lines>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
# Each page begins without queues. Instead of the reader's Ctrl-C, a command that watches is
# interrupted after a second and a server when it is ready.
BEFORE_A_GUIDE = """
curl -sS -X POST "$PENSTOCK_ENDPOINT/_penstock/reset"
watched() { timeout --preserve-status --signal INT 1 "$@" || test $? = 130; }
served() {
  "$@" --http 127.0.0.1:0 --kafka 127.0.0.1:0 --admin 127.0.0.1:0 > served.log &
  until grep -q ^ready served.log; do kill -0 $!; sleep 0.1; done
  kill $! && wait $!
}
"""


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


PROGRAMS = blocks("python")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("readme") / "data"
    with Server(folder, fsync="never", kafka_port=0) as running:
        yield running


@pytest.fixture(scope="module")
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("other") / "data"
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
    with Endpoint() as endpoint:
        lines = [line.replace(HOOK, endpoint.url("/hook")) for line in _commands(BEFORE_USERS)]
        done = _run_lines(lines, tmp_path, {"PENSTOCK_ENDPOINT": server.url})
        assert "resize image 17" in done
        assert lines != _commands(BEFORE_USERS)
        endpoint.wait_for(1)
        [posted] = endpoint.ledger()
        assert posted.body.startswith("posted to the webhook")
        assert posted.headers["webhook-signature"].startswith("v1,")


@pytest.mark.parametrize("section", [USERS, SECURITY], ids=["readme", "security"])
def test_the_commands_for_users_run(tmp_path: Path, section: str) -> None:
    """Certificates, a server that prints the key of its operator, then users: as on the page."""
    lines = _commands(section.replace("queue.example.com", "127.0.0.1"))
    serve = next(line for line in lines if line.startswith("penstock serve"))
    _run_lines(lines[: lines.index(serve)], tmp_path, {})
    port = stable_port()
    ports = serve.partition("#")[0].replace("9324", str(port)).replace("9092", "0")
    arguments = [_in_folder(word, tmp_path) for word in shlex.split(ports)[2:]]
    with Server(tmp_path / "data", port=port, kafka_port=0, arguments=arguments) as server:
        key = dict(re.findall(r"^ *(aws_\w+) = (\S+)$", server.stdout, re.MULTILINE))
        env = {
            "PENSTOCK_KEY_ID": key["aws_access_key_id"],
            "PENSTOCK_SECRET": key["aws_secret_access_key"],
        }
        of_ann = "$(penstock key list ann --tenant shop -o name)"
        after = [
            line.replace("127.0.0.1:9324", f"127.0.0.1:{server.port}").replace("KEYID", of_ann)
            for line in lines[lines.index(serve) + 1 :]
            if "…" not in line
        ]
        done = _run_lines(after, tmp_path, env)
        assert "ann" in done
        assert "policy test" not in section or "allow" in done
        # Whoever followed the page can go on as an operator.
        export = [line for line in after if line.startswith("export ")]
        assert "bob" in _run_lines([*export, "penstock user create bob"], tmp_path, env)


def _in_folder(word: str, folder: Path) -> str:
    return str(folder / word) if (folder / word).is_file() else word


GUIDES = [
    page
    for page in sorted((ROOT / "docs").glob("*.md"))
    if any(block["mark"] != "not run" for block in GUIDE_BLOCK.finditer(page.read_text("utf-8")))
]


def test_the_guides_have_commands_to_run() -> None:
    names = {page.stem for page in GUIDES}
    assert names >= {"kafka", "metrics", "migrate", "operate", "testing", "troubleshooting"}


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_commands_of_a_guide_run(
    server: Server, other_server: Server, tmp_path: Path, page: Path
) -> None:
    lines = [BEFORE_A_GUIDE]
    for block in GUIDE_BLOCK.finditer(page.read_text("utf-8")):
        if block["mark"] != "not run":
            lines += [block["said"] or "", *map(_stopped, block["lines"].splitlines())]
    script = "\n".join(lines)
    for written, here in (
        ("http://new:9324", other_server.url),
        ("OLD:9092", other_server.kafka),
        (KAFKA_ADDRESS, server.kafka),
        ("20261115T030000Z-67e186", "$(ls /backups | head -n 1)"),
        ("/backups", str(tmp_path / "backups")),
        ("/var/lib/penstock", str(tmp_path / "restored")),
        ("data/master.key", str(server.data / "master.key")),
    ):
        script = script.replace(written, here)
    _run_lines(["set -x", script], tmp_path, {"PENSTOCK_ENDPOINT": server.url})


def _stopped(line: str) -> str:
    """The command in ``line``, ended by the script if the page leaves that to the reader."""
    is_script = line.endswith("&")  # which ends its server itself
    if line.startswith("penstock serve") and not is_script:
        return f"served {line}"
    return f"watched {line}" if line.endswith("# until Ctrl-C") else line


def _commands(section: str) -> list[str]:
    lines = [line for block in blocks("sh", section) for line in block.splitlines()]
    return [line for line in lines if not line.startswith(ELSEWHERE)]


def _run_lines(lines: list[str], folder: Path, env: dict[str, str]) -> str:
    programs = Path(sys.prefix) / "bin"
    path = f"{programs}:{programs.parent / 'awscli' / 'bin'}:{os.environ['PATH']}"
    script = "\n".join(["set -eu -o pipefail", *lines])
    typed = "a password of Ann\n"
    more = {"cwd": folder, "env": {**os.environ, "PATH": path, **env}, "input": typed}
    return _run(["bash", "-c", script], **more)


def _run(command: list[str], **more: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **more)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)
