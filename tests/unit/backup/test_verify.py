"""Whatever happens to a backup is found, and the file it happened to is named; and a manifest is
not believed about where files are."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.backup.vault import backed_up
from tests.unit.broker.stage import message, on_stage

from penstock.backup.manifest import (
    MANIFEST_NAME,
    BackupUnusable,
    FileSum,
    Manifest,
    PartitionPart,
    backups_in,
    decode_manifest,
    definitions_of,
    encode_manifest,
    log_path,
    read_manifest,
    verify,
)
from penstock.backup.writing import Pace
from penstock.model.calls import Append

QUICK = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
TOPIC_ID = "0123456789abcdef" * 2
SHA = hashlib.sha256(b"").hexdigest()


@pytest.fixture
async def backup(tmp_path: Path) -> Path:
    async with on_stage(tmp_path / "data") as stage:
        topic = await stage.topic(partitions=2)
        for partition in range(2):
            await stage.broker.call(Append(topic, partition, [message("x" * 40) for _ in range(5)]))
        made, _ = await backed_up(stage, tmp_path / "backups")
    return made


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def copies(backup: Path, tmp_path: Path) -> Path:
    """Where examples may put a copy of it."""
    assert verify(backup) == []
    return tmp_path / "copy"


def copied(backup: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(backup, place)
    return place


@QUICK
@given(data=st.data())
def test_any_changed_byte_is_found(backup: Path, copies: Path, data: st.DataObject) -> None:
    place = copied(backup, copies)
    victim = data.draw(st.sampled_from(files_of(place)))
    content = bytearray(victim.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    victim.write_bytes(content)
    assert verify(place)[0].file == victim.relative_to(place).as_posix()


@QUICK
@given(data=st.data())
def test_a_file_that_is_shorter_longer_or_missing_is_found(
    backup: Path, copies: Path, data: st.DataObject
) -> None:
    place = copied(backup, copies)
    victim = data.draw(st.sampled_from(files_of(place)))
    content = victim.read_bytes()
    length = data.draw(st.none() | st.integers(0, len(content) + 5).filter(len(content).__ne__))
    if length is None:
        victim.unlink()
    else:
        victim.write_bytes((content + b"extra")[:length])
    assert victim.relative_to(place).as_posix() in {found.file for found in verify(place)}


def test_links_and_strangers_are_found(backup: Path, copies: Path) -> None:
    place = copied(backup, copies)
    victim = next(place.rglob("*.log"))
    victim.rename(place.parent / "elsewhere")
    victim.symlink_to(place.parent / "elsewhere")
    (place / "topics" / "more").write_text("?")
    found = {one.file: one.reason for one in verify(place)}
    assert "regular file" in found[victim.relative_to(place).as_posix()]
    assert "not part" in found["topics/more"]


def test_a_linked_folder_and_a_pipe_are_not_followed(backup: Path, copies: Path) -> None:
    place = copied(backup, copies)
    folder = next(place.rglob("*.log")).parent
    outside = place.parent / "outside"
    shutil.move(folder, outside)
    folder.symlink_to(outside)
    assert any(one.file.endswith(".log") for one in verify(place))
    place = copied(backup, copies)
    victim = next(place.rglob("*.log"))
    victim.unlink()
    os.mkfifo(victim)
    assert verify(place)[0].file == victim.relative_to(place).as_posix()


def test_what_is_not_finished_is_no_backup(backup: Path) -> None:
    folder = backup.parent
    assert backups_in(folder) == [backup]
    (backup / MANIFEST_NAME).unlink()
    assert backups_in(folder) == []
    with pytest.raises(BackupUnusable, match="missing"):
        read_manifest(backup)


def manifest_with(**changes: Any) -> Manifest:
    part: dict[str, Any] = {
        "topic_id": TOPIC_ID,
        "partition": 0,
        "start_offset": 5,
        "end_offset": 9,
        "last_epoch": 0,
        "files": [FileSum(log_path(TOPIC_ID, 0, 5), 100, SHA)],
    }
    part.update(changes)
    return Manifest(
        version="1",
        node="n1",
        nodes=[],
        account="000000000000",
        region="us-east-1",
        at_ms=1,
        finished_at_ms=2,
        master_key_id="00000000",
        definitions=FileSum("definitions.jsonl", 0, SHA),
        definition_count=0,
        partitions=[PartitionPart(**part)],
    )


def test_a_manifest_says_the_same_when_it_is_read_again() -> None:
    manifest = manifest_with()
    assert decode_manifest(encode_manifest(manifest)) == manifest


@pytest.mark.parametrize(
    "changes",
    [
        {"topic_id": "../../../../etc"},
        {"topic_id": "/etc"},
        {"topic_id": TOPIC_ID.upper()},
        {"partition": -1},
        {"start_offset": -1},
        {"end_offset": 4},
        {"last_epoch": -2},
        {"low_watermark": -1},
        {"low_watermark": 1_000},
        {"files": []},
        {"files": [FileSum("../../etc/passwd", 1, SHA)]},
        {"files": [FileSum("/etc/passwd", 1, SHA)]},
        {"files": [FileSum(f"topics/{TOPIC_ID}/0/../0/{5:020d}.log", 1, SHA)]},
        {"files": [FileSum(log_path(TOPIC_ID, 1, 5), 1, SHA)]},
        {"files": [FileSum(log_path(TOPIC_ID, 0, 6), 1, SHA)]},
        {"files": [FileSum(log_path(TOPIC_ID, 0, 5), -1, SHA)]},
        {"files": [FileSum(log_path(TOPIC_ID, 0, 5), 1, "")]},
        {"files": [FileSum(log_path(TOPIC_ID, 0, 5), 1, SHA)] * 2},
        {"files": [FileSum(log_path(TOPIC_ID, 0, base), 1, SHA) for base in (5, 9)]},
    ],
)
def test_a_manifest_that_leads_elsewhere_or_makes_no_sense_is_refused(
    changes: dict[str, Any],
) -> None:
    """Although its own checksum is right: whoever changed it could do that as well."""
    with pytest.raises(BackupUnusable):
        decode_manifest(encode_manifest(manifest_with(**changes)))


def test_partitions_are_there_once() -> None:
    manifest = manifest_with()
    doubled = msgspec.structs.replace(manifest, partitions=[*manifest.partitions] * 2)
    with pytest.raises(BackupUnusable, match="twice"):
        decode_manifest(encode_manifest(doubled))


@given(content=st.binary(max_size=300))
def test_any_bytes_are_refused_in_one_way(content: bytes) -> None:
    with pytest.raises(BackupUnusable):
        decode_manifest(content)
    head = f"penstock-backup 1 {hashlib.sha256(content).hexdigest()}\n".encode()
    with pytest.raises(BackupUnusable):
        decode_manifest(head + content)


def test_a_manifest_without_low_watermarks_is_read() -> None:
    """Format 1, as earlier versions wrote it."""
    manifest = manifest_with()
    body = encode_manifest(manifest).split(b"\n", 1)[1]
    old = msgspec.json.decode(body)
    for one in old["partitions"]:
        del one["low_watermark"]
    body = msgspec.json.encode(old)
    head = f"penstock-backup 1 {hashlib.sha256(body).hexdigest()}\n".encode()
    assert decode_manifest(head + body) == manifest


def test_another_format_is_named() -> None:
    content = encode_manifest(manifest_with())
    with pytest.raises(BackupUnusable, match="format 3"):
        decode_manifest(content.replace(b"penstock-backup 2", b"penstock-backup 3", 1))


@pytest.mark.parametrize(
    "line",
    [
        b'{"key":"/nodes/1","value":"e30="}',
        b'{"key":"/partitions/' + TOPIC_ID.encode() + b'/0","value":"e30="}',
        b'{"key":"/store","value":"e30="}',
        b'{"key":"/topics/000000000000/us-east-1/q","value":"e30="}',
        b'{"key":"/producer-ids","value":"bm8="}',
        b'{"key":"/producer-ids"}',
        b"{",
    ],
)
def test_what_does_not_belong_into_a_store_is_refused(tmp_path: Path, line: bytes) -> None:
    content = line + b"\n"
    (tmp_path / "definitions.jsonl").write_bytes(content)
    summed = FileSum("definitions.jsonl", len(content), hashlib.sha256(content).hexdigest())
    manifest = msgspec.structs.replace(
        manifest_with(), definitions=summed, definition_count=1, partitions=[]
    )
    (tmp_path / MANIFEST_NAME).write_bytes(encode_manifest(manifest))
    with pytest.raises(BackupUnusable, match=r"definitions\.jsonl:1"):
        list(definitions_of(tmp_path, manifest))
    assert verify(tmp_path)[0].file == "definitions.jsonl:1"


def test_a_rate_is_kept_from_the_first_byte_on() -> None:
    now = 0.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    pace = Pace(100, now=lambda: now, sleep=sleep)
    for _ in range(10):
        pace.passed(50)
    assert now == pytest.approx(5.0)
    now += 10.0
    pace.passed(50)
    assert len(slept) == 10, "who is late does not wait"
