"""kcat, as it comes with Debian: an older librdkafka behind a command line."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable

import pytest
from tests.compat.kafka.conftest import MakeTopic

KCAT = shutil.which("kcat")
pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed")
Name = Callable[..., str]


def kcat(bootstrap: str, *arguments: str, stdin: str = "") -> str:
    assert KCAT is not None
    done = subprocess.run(
        [KCAT, "-b", bootstrap, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def consume(bootstrap: str, topic: str, *arguments: str) -> str:
    return kcat(bootstrap, "-C", "-t", topic, "-e", "-q", *arguments)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_go_in_and_come_out(bootstrap: str, make_topic: MakeTopic, codec: str) -> None:
    topic = make_topic()
    lines = [f"line {number} " * 10 for number in range(200)]
    kcat(bootstrap, "-P", "-t", topic, "-z", codec, stdin="\n".join(lines) + "\n")
    assert consume(bootstrap, topic, "-o", "beginning").splitlines() == lines


def test_keys_headers_and_partitions(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    for partition in range(3):
        kcat(
            bootstrap,
            *("-P", "-t", topic, "-K", ":", "-H", "colour=blue", "-p", str(partition)),
            stdin=f"k{partition}:v{partition}\n",
        )
    shown = consume(bootstrap, topic, "-f", "%p %k %s %h\\n")
    assert sorted(shown.splitlines()) == [f"{n} k{n} v{n} colour=blue" for n in range(3)]


def test_reading_begins_where_it_is_told(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    kcat(bootstrap, "-P", "-t", topic, stdin="".join(f"{number}\n" for number in range(20)))
    assert consume(bootstrap, topic, "-p", "0", "-o", "15").split() == list(map(str, range(15, 20)))
    assert consume(bootstrap, topic, "-p", "0", "-o", "-3").split() == ["17", "18", "19"]


def test_the_list_shows_broker_and_topic(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(4)
    shown = json.loads(kcat(bootstrap, "-L", "-J", "-t", topic))
    (broker,) = shown["brokers"]
    assert broker["name"] == bootstrap
    assert len(shown["topics"][0]["partitions"]) == 4


def test_an_offset_is_found_by_time(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    kcat(bootstrap, "-P", "-t", topic, stdin="a\nb\n")
    assert kcat(bootstrap, "-Q", "-t", f"{topic}:0:-2").split()[-1] == "0"
    assert kcat(bootstrap, "-Q", "-t", f"{topic}:0:-1").split()[-1] == "2"
    assert kcat(bootstrap, "-Q", "-t", f"{topic}:0:1000").split()[-1] == "0"


def test_a_group_reads_all_once(bootstrap: str, make_topic: MakeTopic, name: Name) -> None:
    topic, group = make_topic(2), name("group")
    kcat(bootstrap, "-P", "-t", topic, stdin="".join(f"{number}\n" for number in range(10)))
    earliest = ("-X", "auto.offset.reset=earliest")
    first = kcat(bootstrap, "-G", group, topic, "-c", "10", "-q", *earliest)
    assert sorted(map(int, first.split())) == list(range(10))
    kcat(bootstrap, "-P", "-t", topic, stdin="next\n")
    assert kcat(bootstrap, "-G", group, topic, "-c", "1", "-q", *earliest).split() == ["next"]
