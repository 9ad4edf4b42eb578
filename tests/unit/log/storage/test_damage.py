"""Every byte of every file, flipped and cut: a reopened log returns what was written, or says that
it cannot. It never returns anything else. ``make test`` tries a part of the bytes."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.harness.full import part
from tests.unit.log.stage import QuickDisk, append, make_batch, open_log, read_all, sync

from penstock.log.log import Log, LogConfig

# Two segments of a few small batches: small enough to try every byte of them.
CONFIG = LogConfig(segment_bytes_max=420, index_interval_bytes=200, tail_bytes_max=0)
FIRST, SECOND = f"{0:020d}", f"{5:020d}"
SIDES = [".index", ".time", ".check"]

pytestmark = pytest.mark.full_set


def some(raw: bytes, count: int = 40) -> Sequence[int]:
    """Return positions in the bytes, all of them in a full run."""
    return part(range(len(raw)), count)


def build(folder: Path, *, clean: bool) -> dict[int, bytes]:
    log = open_log(folder, CONFIG)
    written = {}
    for count, epoch in ((1, 0), (2, 0), (1, 3), (1, 3), (3, 3), (1, 4), (2, 4)):
        offset = log.end_offset
        written[offset] = append(log, count=count, size=8, epoch=epoch)
    log.write_checkpoint("cursor", b"older")
    log.write_checkpoint("cursor", b"newer")
    sync(log)
    log.close(clean=clean)
    assert sorted(path.stem for path in folder.glob("*.log")) == [FIRST, SECOND]
    return written


@pytest.fixture(scope="module", params=["clean", "crashed"])
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[int, bytes]]:
    folder = tmp_path_factory.mktemp("built") / "log"
    return folder, build(folder, clean=request.param == "clean")


def reopened(folder: Path, scratch: Path, name: str, content: bytes) -> Log:
    target = scratch / "log"
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(folder, target)
    (target / name).write_bytes(content)
    return open_log(target, CONFIG, disk=QuickDisk())


def check_served(
    log: Log, written: dict[int, bytes], *, is_at_edge: bool = False
) -> dict[int, bytes]:
    """Nothing but what was written; each offset is there, or damaged, or cut off and counted."""
    found, damages = read_all(log)
    for base_offset, batch in found.items():
        assert written[base_offset] == batch
    damaged = {at for one in damages for at in range(one.first_offset, one.next_offset)}
    for base_offset in written:
        if base_offset not in found and base_offset < log.end_offset:
            assert base_offset in damaged
    # A file that ends between two batches after a crash is what a lost, unsynced write looks like.
    if log.end_offset < 11 and not is_at_edge:
        report = log.recovery
        assert report.truncated_bytes > 0 or report.recovery_point > report.end_offset
    # And it goes on from there.
    follow_up = make_batch(log.end_offset, epoch=9)
    log.append(follow_up, now_ms=0)
    assert log.read(log.end_offset - 1, bytes_max=1) == [follow_up]
    log.close(clean=False)
    return found


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_no_flipped_byte_of_a_segment_is_served(
    built: tuple[Path, dict[int, bytes]], tmp_path: Path, name: str
) -> None:
    folder, written = built
    raw = (folder / f"{name}.log").read_bytes()
    for at in some(raw):
        broken = bytearray(raw)
        broken[at] ^= (0x01, 0x80, 0xFF)[at % 3]
        log = reopened(folder, tmp_path, f"{name}.log", bytes(broken))
        found = check_served(log, written)
        assert len(written) - 1 <= len(found) < len(written), "one flip costs one batch"


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_a_segment_cut_anywhere_loses_only_what_was_cut(
    built: tuple[Path, dict[int, bytes]], tmp_path: Path, name: str
) -> None:
    folder, written = built
    raw = (folder / f"{name}.log").read_bytes()
    edges = {0, *(raw.find(batch) for batch in written.values())}
    for size in some(raw):
        log = reopened(folder, tmp_path, f"{name}.log", raw[:size])
        check_served(log, written, is_at_edge=size in edges)


@pytest.mark.parametrize("suffix", SIDES)
@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_no_flipped_or_missing_byte_of_a_side_file_costs_a_record(
    built: tuple[Path, dict[int, bytes]], tmp_path: Path, name: str, suffix: str
) -> None:
    folder, written = built
    raw = (folder / (name + suffix)).read_bytes()
    for at in some(raw, 12):
        broken = bytearray(raw)
        broken[at] ^= 0xFF if at % 2 else 0x01
        for content in (bytes(broken), raw[:at]):
            log = reopened(folder, tmp_path, name + suffix, content)
            assert log.find_time(1_007) == 8
            assert check_served(log, written) == written


@pytest.mark.parametrize("slot", [0, 1])
def test_a_damaged_checkpoint_gives_way_to_the_other_generation(
    built: tuple[Path, dict[int, bytes]], tmp_path: Path, slot: int
) -> None:
    folder, _ = built
    name = f"cursor.{slot}.checkpoint"
    raw = (folder / name).read_bytes()
    other = b"newer" if raw.endswith(b"older") else b"older"
    for at in some(raw, 12):
        broken = bytearray(raw)
        broken[at] ^= 0x20
        for content in (bytes(broken), raw[:at]):
            log = reopened(folder, tmp_path, name, content)
            assert log.read_checkpoint("cursor") == other
            log.close(clean=False)


def test_a_damaged_recovery_point_costs_only_time(
    built: tuple[Path, dict[int, bytes]], tmp_path: Path
) -> None:
    folder, written = built
    raw = (folder / "recovery-point").read_bytes()
    for at in some(raw, 12):
        broken = bytearray(raw)
        broken[at] ^= 0x04
        for content in (bytes(broken), raw[:at]):
            log = reopened(folder, tmp_path, "recovery-point", content)
            assert not log.recovery.was_clean
            assert check_served(log, written) == written


def test_damage_that_appears_under_an_open_log_is_not_served(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    written = build(folder, clean=True)
    for name in (FIRST, SECOND):
        path = folder / f"{name}.log"
        raw = path.read_bytes()
        for at in some(raw):
            log = open_log(folder, CONFIG, disk=QuickDisk())
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([raw[at] ^ 0x11]))
            found, damages = read_all(log)
            assert damages
            assert all(written[base] == batch for base, batch in found.items())
            log.close(clean=False)
            path.write_bytes(raw)
