"""``penstock storage`` over folders that a log has written, whole and damaged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.log.stage import append_many, open_log

from penstock.cli import main
from penstock.log.log import LogConfig
from penstock.model.message import Attribute, Message
from penstock.node.process.folder import DataFolder
from penstock.record.batch import ATTR_APPEND_TIME, encode_batch
from penstock.record.control import encode_control_batch
from penstock.record.message import encode_message

TOPIC = "0123456789abcdef0123456789abcdef"
CONFIG = LogConfig(segment_bytes_max=600)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*args: str) -> tuple[int, str, str]:
        code = main.run(["storage", *args])
        captured = capsys.readouterr()
        return int(code), captured.out, captured.err

    return call


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    log = open_log(tmp_path / "topics" / TOPIC / "0", CONFIG)
    append_many(log, 12)
    log.write_checkpoint("cursor", b"state")
    log.close()
    log = open_log(tmp_path / "topics" / TOPIC / "1", CONFIG)
    message = Message(
        b"i" * 16, b"secret body", {"color": Attribute("String", b"red")}, "group-1", sender="me"
    )
    record = encode_message(message, offset_delta=0, timestamp_delta=0)
    times: dict[str, Any] = {
        "base_timestamp": 5,
        "max_timestamp": 5,
        "attributes": ATTR_APPEND_TIME,
    }
    log.append(encode_batch([record], base_offset=0, leader_epoch=2, **times), now_ms=5)
    control = encode_control_batch([(64, b"\xff")], base_offset=1, leader_epoch=2, timestamp=6)
    log.append(control, now_ms=6)
    log.close()
    return tmp_path


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_inspect_shows_each_partition(run: Run, data: Path) -> None:
    before = snapshot(data)
    code, out, _ = run("inspect", str(data), "-o", "json")
    assert code == 0
    first, second = json.loads(out)
    assert (first["topic_id"], first["partition"], first["end_offset"]) == (TOPIC, 0, 12)
    assert first["segments"] > 1
    assert first["clean_stop"] is True
    assert (second["partition"], second["end_offset"], second["damaged_ranges"]) == (1, 2, 0)
    assert snapshot(data) == before


def test_verify_of_a_whole_folder_finds_nothing_and_changes_nothing(run: Run, data: Path) -> None:
    before = snapshot(data)
    code, out, err = run("verify", str(data), "-o", "json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["healthy"] is True
    assert report["findings"] == []
    assert report["batches"] == 14
    assert report["bytes"] == sum(path.stat().st_size for path in data.rglob("*.log"))
    assert snapshot(data) == before


def test_verify_finds_a_flipped_bit_and_exits_with_eight(run: Run, data: Path) -> None:
    path = data / "topics" / TOPIC / "0" / f"{0:020d}.log"
    flip(path, 90)
    before = snapshot(data)
    code, out, _ = run("verify", str(data), "-o", "json")
    assert code == 8
    (finding,) = json.loads(out)["findings"]
    assert (finding["kind"], finding["file"], finding["position"]) == ("damage", str(path), 0)
    assert (finding["first_offset"], finding["next_offset"]) == (0, 1)
    assert snapshot(data) == before
    code, out, _ = run("verify", str(data), "-o", "table")
    assert code == 8
    assert "damage found" in out
    assert "CRC" in out


def test_verify_finds_that_synced_records_are_gone(run: Run, data: Path) -> None:
    path = sorted((data / "topics" / TOPIC / "0").glob("*.log"))[-1]
    path.write_bytes(b"")
    code, out, _ = run("verify", str(data), "-o", "json")
    assert code == 8
    reasons = [one["reason"] for one in json.loads(out)["findings"] if one["kind"] == "damage"]
    assert reasons == ["synced records are missing"]


@pytest.mark.parametrize("name", [f"{0:020d}.index", f"{0:020d}.check", "cursor.0.checkpoint"])
def test_verify_remarks_on_what_a_start_puts_right(run: Run, data: Path, name: str) -> None:
    flip(data / "topics" / TOPIC / "0" / name, 5)
    code, out, _ = run("verify", str(data), "-o", "json")
    assert code == 0
    assert [one["kind"] for one in json.loads(out)["findings"]] == ["remark"]


def test_dump_hides_bodies_unless_asked(run: Run, data: Path) -> None:
    path = str(data / "topics" / TOPIC / "1" / f"{0:020d}.log")
    code, out, _ = run("dump-segment", path, "-o", "json")
    assert code == 0
    assert "secret" not in out
    message, control = json.loads(out)
    assert message["group"] == "group-1"
    assert message["attributes"] == ["color"]
    assert (message["body_bytes"], message["epoch"], message["codec"]) == (11, 2, "none")
    assert message["message_id"] == "69696969-6969-6969-6969-696969696969"
    assert (control["kind"], control["offset"], control["timestamp_ms"]) == ("control 64", 1, 6)
    code, out, _ = run("dump-segment", path, "-o", "json", "--bodies")
    assert [row["body"] for row in json.loads(out)] == ["secret body", "hex:ff"]
    code, out, _ = run("dump-segment", path, "-o", "table", "--bodies", "--from", "1")
    assert code == 0
    assert "secret" not in out
    assert "control 64" in out


def test_dump_goes_on_behind_damage(run: Run, data: Path) -> None:
    path = data / "topics" / TOPIC / "0" / f"{0:020d}.log"
    flip(path, 8)
    code, out, _ = run("dump-segment", str(path), "-o", "json", "-n", "3")
    assert code == 0
    rows = json.loads(out)
    assert [row["kind"] for row in rows] == ["damage", "message", "message"]
    assert [row["offset"] for row in rows] == [0, 1, 2]


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("inspect", "nowhere"), 3),
        (("verify", "."), 3),
        (("dump-segment", "nothing.log"), 3),
        (("dump-segment", "format"), 2),
    ],
)
def test_mistakes_are_three_lines_and_an_exit_code(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "format").write_bytes(b"")
    found, out, err = run(*args)
    assert (found, out) == (code, "")
    assert err.startswith("error: ")
    assert "Traceback" not in err


def test_verify_says_that_a_server_runs_on_the_folder(run: Run, data: Path) -> None:
    running = DataFolder(data)
    before = snapshot(data)
    code, out, err = run("verify", str(data), "-o", "json")
    assert (code, json.loads(out)["server_running"]) == (0, True)
    assert f"a server runs on {data}" in err
    assert "while a server runs" in run("verify", str(data), "-o", "table")[1]
    running.release()
    code, out, err = run("verify", str(data), "-o", "json")
    assert (code, json.loads(out)["server_running"], err) == (0, False, "")
    assert snapshot(data) == before
