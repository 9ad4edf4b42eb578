"""The pytest plugin, used by test files as users write them, in a pytest process of its own."""

import math
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing import PenstockServer

ISOLATED = """
    import boto3
    import pytest
    from kafka import KafkaConsumer, KafkaProducer


    @pytest.mark.parametrize("turn", range(2))
    def test_a_queue_of_an_earlier_test_is_gone(sqs, turn):
        assert "QueueUrls" not in sqs.list_queues()
        url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody=f"of turn {turn}")
        bodies = [m["Body"] for m in sqs.receive_message(QueueUrl=url)["Messages"]]
        assert bodies == [f"of turn {turn}"]


    @pytest.mark.parametrize("turn", range(2))
    def test_records_and_offsets_of_an_earlier_test_are_gone(kafka_bootstrap, turn):
        producer = KafkaProducer(bootstrap_servers=kafka_bootstrap)
        producer.send("clicks", f"of turn {turn}".encode()).get(timeout=30)
        producer.close()
        consumer = KafkaConsumer(
            "clicks",
            bootstrap_servers=kafka_bootstrap,
            group_id="readers",
            auto_offset_reset="earliest",
        )
        record = next(consumer)
        assert (record.offset, record.value.decode()) == (0, f"of turn {turn}")
        consumer.commit()
        consumer.close()


    def test_code_under_test_needs_no_endpoint(penstock):
        sqs = boto3.client("sqs")
        assert sqs.meta.endpoint_url == penstock.url
        assert sqs.create_queue(QueueName="own-client")["QueueUrl"].startswith(penstock.url)


    def test_both_views_are_of_one_server(sqs, kafka_bootstrap, penstock_server):
        assert sqs.meta.endpoint_url == penstock_server.url
        assert kafka_bootstrap == penstock_server.kafka_bootstrap
"""

# The processor time of client and server, from the end of the first test on: the start of the
# server, the import of boto3 and the making of the client are once per run.
FIFTY = """
    import os
    import time
    from pathlib import Path

    import pytest

    spent = []


    def cpu_seconds(server):
        fields = Path(f"/proc/{server._process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


    @pytest.mark.parametrize("turn", range(51))
    def test_create_send_receive(sqs, penstock, turn):
        url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="x")
        assert len(sqs.receive_message(QueueUrl=url)["Messages"]) == 1
        spent.append((time.perf_counter(), cpu_seconds(penstock)))


    def test_the_time_of_fifty():
        (began, cpu_began), (ended, cpu_ended) = spent[0], spent[-1]
        print(f"fifty took wall={ended - began:.2f} cpu={cpu_ended - cpu_began:.2f}")
"""
FIFTY_CPU_SECONDS_MAX = 2.0

# The whole run: with the start of the server and the import of boto3.
EMPTY = """
    import pytest


    @pytest.mark.parametrize("turn", range(50))
    def test_nothing(turn):
        pass
"""
WITH_FIXTURES = EMPTY.replace("(turn)", "(sqs, penstock, turn)")
FIXTURES_CPU_SECONDS_MAX = 2.0


def pytest_run(
    folder: Path, text: str, *arguments: str, plugins: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """``PYTEST_DISABLE_PLUGIN_AUTOLOAD``: the plugin is this worktree's, installed or not."""
    lines = text.strip("\n").splitlines()
    (folder / "test_sample.py").write_text("\n".join(line[4:] for line in lines) + "\n")
    (folder / "pytest.ini").write_text("[pytest]\n")
    named = [part for name in ("penstock.testing", *plugins) for part in ("-p", name)]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "AWS_"))}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # or each start compiles the server, 2 s of CPU time
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", *named, *arguments, str(folder)],
        cwd=folder,
        env={**env, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_each_test_finds_an_empty_server(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, ISOLATED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


def test_the_tests_in_the_guide_pass(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    tests = [block for block in blocks if "def test_" in block]
    lines = "\n".join(tests).splitlines()
    done = pytest_run(tmp_path, "\n".join(f"    {line}" for line in lines))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(tests)} passed" in done.stdout


def test_each_worker_of_xdist_has_a_server_that_ends_with_it(tmp_path: Path) -> None:
    sample = """
    import os

    import pytest


    @pytest.mark.parametrize("turn", range(4))
    def test_says_its_server(sqs, penstock_server, turn):
        sqs.create_queue(QueueName=f"{os.environ['PYTEST_XDIST_WORKER']}-{turn}")
        assert len(sqs.list_queues()["QueueUrls"]) == 1
        print(f"server={penstock_server._process.pid} of {os.environ['PYTEST_XDIST_WORKER']}")
    """
    done = pytest_run(tmp_path, sample, "-n", "2", "--dist", "each", plugins=("xdist",))
    assert done.returncode == 0, done.stdout + done.stderr
    servers = set(re.findall(r"server=(\d+) of (gw\d)", done.stdout))
    assert {worker for _, worker in servers} == {"gw0", "gw1"}
    assert len({pid for pid, _ in servers}) == 2
    assert not [pid for pid, _ in servers if Path(f"/proc/{pid}").exists()]


def test_fifty_tests_take_little_more_than_their_requests(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, FIFTY)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"fifty took wall=([\d.]+) cpu=([\d.]+)", done.stdout)
    assert found is not None, done.stdout
    print(found[0])
    assert float(found[2]) < FIFTY_CPU_SECONDS_MAX, found[0]


def test_fifty_tests_with_the_fixtures_cost_little_more_than_empty_ones(tmp_path: Path) -> None:
    def cpu_s(text: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert "50 passed" in pytest_run(tmp_path, text).stdout
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # The best of five: neighbours on the machine make a run longer, never shorter.
    more_s = math.inf
    for _ in range(5):
        more_s = min(more_s, cpu_s(WITH_FIXTURES) - cpu_s(EMPTY))
        if more_s < FIXTURES_CPU_SECONDS_MAX:
            break
    print(f"{more_s:.2f} s of CPU time more, at most {FIXTURES_CPU_SECONDS_MAX}")
    assert more_s < FIXTURES_CPU_SECONDS_MAX


def test_a_missing_boto3_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "boto3.py").write_text("raise ModuleNotFoundError('boto3')\n")
    sample = """
    def test_needs_a_client(sqs):
        pass
    """
    done = pytest_run(tmp_path, sample)
    assert done.returncode == 1
    assert "the fixture sqs needs boto3: pip install boto3" in done.stdout
    assert "1 error" in done.stdout


def test_settings_of_the_developers_shell_do_not_reach_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_NODE__MODE", "prod")  # which has no reset
    server = PenstockServer(tmp_path)
    try:
        server.reset()
    finally:
        server.stop()


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    with pytest.raises(RuntimeError, match=r"(?s)did not start.*data") as raised:
        PenstockServer(tmp_path)
    assert "data is a file, not a folder" in str(raised.value)
