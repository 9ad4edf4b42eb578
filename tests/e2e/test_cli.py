"""The installed ``penstock`` command against a server that it started itself: every verb, its exit
code, and what happens in pipes."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest
from tests.harness import forks
from tests.harness.command import Done
from tests.harness.patience import eventually
from tests.harness.server import Server, penstock_command

from penstock.cli.setup.generate import RECIPES
from penstock.cli.terminal.failure import ExitCode
from penstock.cli.terminal.output import time_of_day

PENSTOCK = penstock_command()


class Shell:
    """Runs commands with the server's address in the environment, as a user's shell would."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        drop = ("AWS_REGION", "AWS_DEFAULT_REGION", "PENSTOCK_ADMIN", "CI", "NO_COLOR")
        self.env = {key: value for key, value in os.environ.items() if key not in drop}
        self.env["PENSTOCK_ENDPOINT"] = url
        self.env["PATH"] = f"{Path(PENSTOCK).parent}{os.pathsep}{self.env['PATH']}"

    def __call__(self, *args: str, stdin: str = "") -> Done:
        done = forks.run([PENSTOCK, *args], stdin=stdin, env=self.env)
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def script(self, text: str) -> Done:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            capture_output=True,
            text=True,
            env=self.env,
            cwd=self.folder,
            timeout=60,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *args: str) -> "subprocess.Popen[str]":
        return forks.Forked(
            [PENSTOCK, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
        )

    def on_terminal(self, *args: str, keys: bytes = b"") -> tuple[int, str]:
        """The same with all three streams on a terminal; the keys are typed at once."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(PENSTOCK, [PENSTOCK, *args], {**self.env, "TERM": "xterm", "COLUMNS": "100"})
        if keys:
            os.write(terminal, keys)
        shown = b""
        while True:
            try:
                data = os.read(terminal, 65_536)
            except OSError:  # how Linux says that the other side is gone
                break
            if not data:
                break
            shown += data
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status), shown.decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("data"), fsync="never") as running:
        yield running
        assert running.stop() == 0
        running.assert_no_traceback()


@pytest.fixture
def shell(server: Server, tmp_path: Path) -> Shell:
    return Shell(server.url, tmp_path)


@pytest.fixture
def queue(shell: Shell, request: pytest.FixtureRequest) -> Iterator[str]:
    """A queue named after the test."""
    name = request.node.name[:80].replace("[", "-").replace("]", "")
    assert shell("queue", "create", name).code == 0
    yield name
    shell("queue", "delete", name, "--yes")


def test_a_queue_lives_from_create_to_delete(shell: Shell) -> None:
    created = shell(
        *("queue", "create", "life", "--fifo", "--content-dedup", "--partitions", "1"),
        *("--visibility", "2m", "--fsync", "interval", "--tag", "team=a"),
    )
    assert created.json["name"] == "life.fifo"
    shown = shell("queue", "show", "life.fifo").json
    wanted = {"kind": "fifo", "partitions": 1, "visibility_s": 120, "fsync": "interval"}
    assert shown.items() >= {**wanted, "content_dedup": True, "tags": {"team": "a"}}.items()
    assert shell("queue", "set", "life.fifo", "--visibility", "5", "--untag", "team").code == 0
    changed = shell("queue", "show", "life.fifo").json
    assert (changed["visibility_s"], changed["tags"]) == (5, {})
    assert shell("queue", "create", "life.fifo", "--delay", "7").code == ExitCode.CONFLICT
    assert shell("queue", "delete", "life.fifo").code == ExitCode.USAGE
    assert shell("queue", "delete", "life.fifo", "--yes").code == 0
    assert shell("queue", "show", "life.fifo").code == ExitCode.NOT_FOUND


def test_lists_have_numbers_names_and_prefixes(shell: Shell, queue: str) -> None:
    shell("message", "send", queue, "a", "b", "c")
    (row,) = shell("queue", "list", queue).lines
    assert (row["name"], row["visible"], row["partitions"]) == (queue, 3, 1)
    assert queue in shell("queue", "list", "-o", "name").out.split()
    assert shell("queue", "list", "no-such-prefix").out == ""
    assert shell("queue", "list", "--sort", "backlog", "-o", "json").json[0]["visible"] >= 3
    assert shell("queue", "stats", queue).lines[0]["sent"] == 3


def test_purge_counts_first_and_removes_then(shell: Shell, queue: str) -> None:
    shell("message", "send", queue, "a", "b")
    assert shell("queue", "purge", queue, "--dry-run").json["would_remove"] == 2
    assert shell("queue", "purge", queue).code == ExitCode.USAGE
    assert shell("queue", "purge", queue, "--yes").code == 0
    assert shell("queue", "show", queue).json["visible"] == 0
    assert shell("queue", "purge", queue, "--yes").code == ExitCode.CONFLICT


def test_a_terminal_asks_for_the_name_again(shell: Shell) -> None:
    shell("queue", "create", "doomed")
    code, shown = shell.on_terminal("queue", "delete", "doomed", keys=b"dommed\n")
    assert code == ExitCode.USAGE
    assert "Type the name to confirm" in shown
    assert shell("queue", "show", "doomed").code == 0
    code, _ = shell.on_terminal("queue", "delete", "doomed", keys=b"doomed\n")
    assert code == 0
    assert shell("queue", "show", "doomed").code == ExitCode.NOT_FOUND


def test_a_terminal_gets_a_table(shell: Shell, queue: str) -> None:
    code, shown = shell.on_terminal("queue", "list")
    assert code == 0
    assert "VISIBLE" in shown
    assert "{" not in shown


def test_a_blocked_message_group_says_what_blocks_it(shell: Shell) -> None:
    name = "blocked.fifo"
    assert shell("queue", "create", name, "--content-dedup", "--visibility", "10m").code == 0
    for body in "abc":
        shell("message", "send", name, body, "--group", "g1")
    assert shell("message", "receive", name).json["body"] == "a"
    first, second, third = shell("message", "peek", name).lines
    assert (first["state"], first["attempts"]) == ("in_flight", 1)
    assert second["state"] == third["state"] == "blocked"
    assert second["blocked_by"] == first["offset"]
    # The server turns a monotonic time into a wall time each time: they differ by a millisecond.
    assert abs(second["until_ms"] - first["until_ms"]) <= 2
    ends = "|".join({time_of_day(first["until_ms"] + late_ms) for late_ms in (-2, 0, 2)})
    until, offset = f"until ({ends})", first["offset"]
    table = shell("message", "peek", name, "-o", "table").out
    assert re.search(f"in flight {until}", table)
    assert re.search(f"blocked by offset {offset}, {until}", table)
    assert shell("queue", "show", name).json["blocked"] == 2
    told = shell("queue", "explain", name).json
    assert not told["is_delivering"]
    assert [reason["code"] for reason in told["reasons"]] == ["blocked", "in_flight"]
    code, shown = shell.on_terminal("message", "receive", name)
    assert code == 0
    assert re.search(f"no message: 2 blocked in group g1 {until}, 0 delayed", shown)
    code, shown = shell.on_terminal("queue", "explain", name)
    assert re.search(f"offset {offset} of partition 0 is in flight {until}", shown)
    silent = shell("message", "receive", name)
    assert (silent.out, silent.err) == ("", ""), "a pipe gets messages and nothing else"
    assert shell("message", "receive", name, "-o", "json").json == []


def test_messages_go_in_and_out_through_pipes(shell: Shell, queue: str) -> None:
    numbers = "".join(f"{number}\n" for number in range(100))
    assert shell("message", "send", queue, "-", stdin=numbers).json["sent"] == 100
    received = shell("message", "receive", queue, "-n", "200", "--delete")
    assert {line["body"] for line in received.lines} == set(numbers.split())
    again = shell("message", "send", queue, "--ndjson", "-", stdin=received.out)
    assert again.json == {"queue": queue, "sent": 100, "failed": 0}
    assert shell("queue", "show", queue).json["visible"] == 100


def test_everything_a_message_carries_survives_a_round_trip(shell: Shell) -> None:
    shell("queue", "create", "carry.fifo")
    line = {
        "body": "grün ☂ \t end",
        "group": "g",
        "dedup_id": "d",
        "attributes": {"text": "x", "number": 1.5, "raw": {"type": "Binary", "value": "AAE="}},
    }
    sent = shell("message", "send", "carry.fifo", "--ndjson", "-", stdin=json.dumps(line))
    assert sent.code == 0
    (got,) = shell("message", "receive", "carry.fifo").lines
    assert (got["body"], got["group"], got["dedup_id"]) == (line["body"], "g", "d")
    assert got["attributes"] == {
        "text": {"type": "String", "value": "x"},
        "number": {"type": "Number", "value": "1.5"},
        "raw": {"type": "Binary", "value": "AAE="},
    }
    shell("queue", "delete", "carry.fifo", "--yes")


def test_a_refused_message_is_exit_7_and_the_others_arrive(shell: Shell, queue: str) -> None:
    done = shell("message", "send", queue, "-", stdin="good\nbad \x01 byte\nfine\n")
    assert done.code == ExitCode.PARTIAL
    assert done.json == {"queue": queue, "sent": 2, "failed": 1}
    assert "message 2 rejected" in done.err


def unread(pipe: IO[str] | None) -> int:
    assert pipe is not None
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])


def test_a_send_from_a_slow_pipe_does_not_wait_and_tells_what_was_accepted(
    shell: Shell, queue: str
) -> None:
    send = forks.Forked(
        [PENSTOCK, "message", "send", queue, "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=shell.env,
    )
    assert send.stdin is not None
    send.stdin.write("one\ntwo\n")
    send.stdin.flush()
    got = shell("message", "receive", queue, "-n", "2", "--wait", "20").lines
    assert {line["body"] for line in got} <= {"one", "two"}
    send.stdin.write("thr")
    send.stdin.flush()
    # What it reads now it reads after the answer to the first two.
    eventually(lambda: unread(send.stdin) == 0, seconds=120, what="it has read on")
    send.send_signal(signal.SIGINT)
    _, err = send.communicate(timeout=120)
    assert send.returncode == ExitCode.INTERRUPTED
    assert f"'{queue}' had accepted 2 messages" in err


def test_a_receipt_extends_releases_and_deletes(shell: Shell, queue: str) -> None:
    shell("message", "send", queue, "work")
    (first,) = shell("message", "receive", queue, "--visibility", "10m").lines
    assert shell("message", "receive", queue).out == ""
    assert shell("message", "visibility", queue, first["receipt"], "0").code == 0
    (second,) = shell("message", "receive", queue, "--wait", "5").lines
    assert second["attempts"] == 2
    assert shell("message", "delete", queue, second["receipt"]).json["deleted"] == 1
    assert shell("message", "delete", queue, "nonsense").code == ExitCode.FAILED
    assert shell("queue", "show", queue).json["in_flight"] == 0


def test_peek_takes_nothing_and_knows_the_state(shell: Shell, queue: str) -> None:
    shell("message", "send", queue, "leased", "waiting")
    shell("message", "receive", queue)
    shell("message", "send", queue, "later", "--delay", "15m")
    states = {line["body"]: line["state"] for line in shell("message", "peek", queue).lines}
    assert states == {"leased": "in_flight", "waiting": "visible", "later": "delayed"}
    assert shell("message", "receive", queue, "-n", "10").lines[0]["attempts"] == 1


def test_tail_follows_filters_and_ends_with_130(shell: Shell, queue: str) -> None:
    shell("message", "send", queue, "-", stdin="".join(f"old {n}\n" for n in range(30)))
    last = shell("message", "tail", queue, "--from", "-3", "--exit-at-end").lines
    assert [line["body"] for line in last] == ["old 27", "old 28", "old 29"]
    tail = shell.start("message", "tail", queue, "--from", "-1", "--grep", "new|29")
    assert tail.stdout is not None
    assert json.loads(tail.stdout.readline())["body"] == "old 29"  # it is watching from here on
    shell("message", "send", queue, "skipped", "new one")
    assert json.loads(tail.stdout.readline())["body"] == "new one"
    tail.send_signal(signal.SIGINT)
    _, err = tail.communicate(timeout=120)
    assert tail.returncode == ExitCode.INTERRUPTED
    assert "Traceback" not in err


def test_watching_numbers_ends_with_130_when_interrupted(shell: Shell, queue: str) -> None:
    watch = shell.start("queue", "stats", queue, "--watch", "--interval", "0.2")
    assert watch.stdout is not None
    lines = [json.loads(watch.stdout.readline()) for _ in range(2)]
    assert lines[0]["sent_per_s"] is None
    assert lines[1]["sent_per_s"] == 0.0
    watch.send_signal(signal.SIGINT)
    _, err = watch.communicate(timeout=120)
    assert watch.returncode == ExitCode.INTERRUPTED
    assert err == ""


def test_a_pipe_closed_early_is_no_error(shell: Shell, queue: str) -> None:
    shell("message", "send", queue, "-", stdin="x" * 2_000 + "\n" + "y\n" * 500)
    done = shell.script(f"penstock message tail {queue} --from begin | head -n 2 | wc -l")
    assert (done.code, done.out.strip(), done.err) == (0, "2", "")


def fill_dead_letters(shell: Shell, name: str, count: int) -> None:
    """Messages that were received once too often."""
    shell("queue", "create", f"{name}-dead")
    shell("queue", "create", name, "--dead-letter", f"{name}-dead", "--max-receives", "1")
    shell("message", "send", name, "-", stdin="x\n" * count)
    seen = shell("message", "receive", name, "-n", str(count), "--visibility", "0")
    assert len(seen.lines) == count
    assert shell("message", "receive", name, "-n", str(count)).out == ""


def test_dead_letters_are_listed_and_moved_back(shell: Shell) -> None:
    fill_dead_letters(shell, "mail", 7)
    (row,) = [line for line in shell("dlq", "list").lines if line["name"] == "mail-dead"]
    assert (row["visible"], row["sources"]) == (7, ["mail"])
    plan = shell("dlq", "redrive", "mail-dead", "--dry-run").json
    assert (plan["would_move"], plan["to"]) == (7, ["mail"])
    moved = shell("dlq", "redrive", "mail-dead").json
    assert (moved["status"], moved["moved"]) == ("COMPLETED", 7)
    assert shell("queue", "show", "mail").json["visible"] == 7
    assert shell("dlq", "status", "mail-dead").lines[0]["status"] == "COMPLETED"
    assert shell("dlq", "cancel", "mail-dead").code == ExitCode.NOT_FOUND
    assert shell("dlq", "redrive", "mail").code != 0


def answered(server: Server, api: str) -> float:
    start = f'penstock_requests_total{{api="{api}"'
    return sum(value for name, value in server.metrics().items() if name.startswith(start))


def test_an_interrupted_redrive_goes_on_until_it_is_cancelled(shell: Shell, server: Server) -> None:
    fill_dead_letters(shell, "slow", 60)
    before = answered(server, "ListMessageMoveTasks")
    redrive = shell.start("dlq", "redrive", "slow-dead", "--rate", "1")
    eventually(
        lambda: answered(server, "ListMessageMoveTasks") > before,
        seconds=120,
        what="the command waits for the move",
    )
    redrive.send_signal(signal.SIGINT)
    _, err = redrive.communicate(timeout=120)
    assert redrive.returncode == ExitCode.INTERRUPTED
    assert "penstock dlq status slow-dead" in err
    assert shell("dlq", "status", "slow-dead").lines[0]["status"] == "RUNNING"
    assert shell("dlq", "cancel", "slow-dead").code == 0
    ended = shell("dlq", "status", "slow-dead", "--wait")
    assert ended.lines[0]["status"] == "CANCELLED"


@pytest.mark.parametrize("kind", ["send", "receive", "latency", "e2e"])
def test_a_bench_reports_and_leaves_no_queue(shell: Shell, kind: str) -> None:
    more: Sequence[str] = ("--preload", "200") if kind == "receive" else ()
    done = shell("bench", kind, "--duration", "0.5", "-c", "4", "--rate", "200", *more)
    assert done.code == 0, done.err
    assert done.json["messages"] > 0
    assert done.json["errors"] == 0
    assert "penstock-bench-" not in shell("queue", "list", "-o", "name").out


def test_the_doctor_finds_a_running_server_healthy(shell: Shell, server: Server) -> None:
    report = shell("doctor", "-o", "json")
    assert report.code == 0, report.out
    origins = {row["key"]: row["origin"] for row in report.json["config"]}
    assert origins["node.data"].startswith("flag")
    missing = shell("doctor", "--endpoint", "http://127.0.0.1:1", "--data", str(server.data))
    assert missing.code == ExitCode.UNHEALTHY


def test_nobody_there_is_exit_5_and_says_what_to_start(shell: Shell) -> None:
    done = shell("--endpoint", "http://127.0.0.1:1", "message", "send", "q", "x")
    assert done.code == ExitCode.UNREACHABLE
    assert "penstock serve" in done.err


def test_regions_are_separate_namespaces(shell: Shell, queue: str) -> None:
    assert shell("queue", "show", queue, "--region", "eu-west-1").code == ExitCode.NOT_FOUND
    assert queue not in shell("--region", "eu-west-1", "queue", "list", "-o", "name").out


@pytest.mark.parametrize("topic", ["fifo", "dlq", "batch", "kafka", "two-views", "copy", "backup"])
def test_a_shell_recipe_works_when_pasted(shell: Shell, topic: str) -> None:
    done = shell.script(RECIPES[topic]["text"])
    assert done.code == 0, done.err
    shell.script("penstock queue list -o name | xargs -rn 1 penstock queue delete --yes -q")
    shell.script("penstock topic list -o name | xargs -rn 1 penstock topic delete --yes -q")


def test_the_python_recipe_works_when_pasted(shell: Shell, server: Server) -> None:
    text = RECIPES["boto3"]["text"].replace("http://127.0.0.1:9324", server.url)
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env=shell.env, check=True
    )
    assert done.stdout == "hello\n"
    shell("queue", "delete", "jobs", "--yes")


def test_the_ci_recipe_starts_and_stops_a_server(shell: Shell) -> None:
    done = shell.script(RECIPES["ci"]["text"] + 'wait "$server"\n')
    assert done.code == 0, done.err
    assert '"name": "jobs"' in done.out


def test_the_configuration_is_printed_with_its_origins(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('[log]\nfsync = "never"\n')
    done = shell("serve", "--config", str(path), "--partitions", "3", "--print-config")
    assert done.code == 0
    assert f"log.fsync = never  # file {path}" in done.out
    assert "queue.partitions = 3  # flag queue.partitions" in done.out
    path.write_text("[log]\nfsnyc = 1\n")
    assert shell("serve", "--config", str(path), "--print-config").code == ExitCode.USAGE
