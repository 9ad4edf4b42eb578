"""The master key: where it comes from, whom it is kept from, and what it wraps."""

import base64
import os
import stat
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import Damaged
from penstock.model.ports import KeyRing
from penstock.node.configuration.config import KeysConfig
from penstock.node.keys import keyring
from penstock.node.keys.keyring import (
    KMS_NAME,
    MASTER_NAME,
    REPLY_BYTES_MAX,
    CommandKms,
    KeyRingUnusable,
    KmsFailed,
    MasterKeyRing,
    open_key_ring,
    start_key_ring,
)

FIRST = bytes(range(32))
SECOND = bytes(range(32, 64))


def write_master(path: Path, master: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(base64.b64encode(master) + b"\n")
    path.chmod(mode)
    return path


# ── Wrapping ─────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=50)
@given(st.binary(max_size=200), st.binary(max_size=60))
def test_what_is_wrapped_comes_back_under_its_context(secret: bytes, context: bytes) -> None:
    ring: KeyRing = MasterKeyRing(FIRST)
    wrapped = ring.wrap(secret, context=context)
    assert ring.unwrap(wrapped, context=context) == secret
    assert len(secret) < 8 or secret not in wrapped
    assert wrapped != ring.wrap(secret, context=context)  # another nonce each time


@settings(max_examples=50)
@given(st.data())
def test_a_changed_byte_anywhere_is_noticed(data: st.DataObject) -> None:
    ring = MasterKeyRing(FIRST)
    wrapped = bytearray(ring.wrap(b"secret", context=b"/keys/a"))
    place = data.draw(st.integers(0, len(wrapped) - 1))
    wrapped[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Damaged):
        ring.unwrap(bytes(wrapped), context=b"/keys/a")


def test_what_was_wrapped_for_one_entry_is_of_no_use_in_another() -> None:
    ring = MasterKeyRing(FIRST)
    wrapped = ring.wrap(b"secret", context=b"/keys/a")
    with pytest.raises(Damaged, match="/keys/b"):
        ring.unwrap(wrapped, context=b"/keys/b")


@pytest.mark.parametrize("length", [0, 1, 16, 32])
def test_what_is_too_short_is_damage(length: int) -> None:
    with pytest.raises(Damaged, match="too short"):
        MasterKeyRing(FIRST).unwrap(b"\x01" * length, context=b"")


def test_another_version_is_named() -> None:
    ring = MasterKeyRing(FIRST)
    wrapped = b"\x02" + ring.wrap(b"x", context=b"")[1:]
    with pytest.raises(Damaged, match="version 2"):
        ring.unwrap(wrapped, context=b"")


def test_the_id_is_a_digest_of_the_key_and_stands_in_what_it_wraps() -> None:
    ring = MasterKeyRing(FIRST)
    assert ring.master_id == "630dcd29"
    assert ring.wrap(b"", context=b"")[1:5].hex() == ring.master_id
    assert repr(ring) == "MasterKeyRing(630dcd29)"


def test_an_old_master_key_still_unwraps_and_rewrap_makes_it_unnecessary() -> None:
    before = MasterKeyRing(FIRST)
    old = before.wrap(b"secret", context=b"c")
    both = MasterKeyRing(SECOND, old=[FIRST])
    assert both.unwrap(old, context=b"c") == b"secret"
    new = both.rewrap(old, b"c")
    assert both.rewrap(new, b"c") == new  # nothing to do
    after = MasterKeyRing(SECOND)
    assert after.unwrap(new, context=b"c") == b"secret"
    with pytest.raises(Damaged, match=f"{before.master_id} is not configured"):
        after.unwrap(old, context=b"c")


def test_an_entry_that_cannot_be_read_is_not_wrapped_anew() -> None:
    ring = MasterKeyRing(FIRST)
    with pytest.raises(Damaged):
        ring.rewrap(ring.wrap(b"x", context=b"a"), b"b")


# ── Files ────────────────────────────────────────────────────────────────────────────────────


def test_the_first_start_makes_a_key_and_the_next_one_finds_it(tmp_path: Path) -> None:
    first = open_key_ring(tmp_path)
    path = tmp_path / MASTER_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    wrapped = first.wrap(b"x", context=b"c")
    assert open_key_ring(tmp_path).unwrap(wrapped, context=b"c") == b"x"
    assert [file.name for file in tmp_path.iterdir()] == [MASTER_NAME]


def test_a_start_that_was_cut_short_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    (tmp_path / f"{MASTER_NAME}.new").write_bytes(b"half")
    assert open_key_ring(tmp_path).master_id == open_key_ring(tmp_path).master_id


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o620, 0o666, 0o777])
def test_a_key_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = write_master(tmp_path / "key", FIRST, mode)
    with pytest.raises(KeyRingUnusable, match=f"mode {mode:04o}.*chmod 600"):
        open_key_ring(tmp_path, master_file=str(path))


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440])
def test_a_key_of_ours_or_handed_over_by_a_group_is_taken(tmp_path: Path, mode: int) -> None:
    path = write_master(tmp_path / "key", FIRST, mode)
    ring = open_key_ring(tmp_path, master_file=str(path))
    assert ring.master_id == MasterKeyRing(FIRST).master_id
    assert not (tmp_path / MASTER_NAME).exists()


@pytest.mark.parametrize(
    "content", [b"", b"short", base64.b64encode(b"x" * 31), b"\xff" * 32, b"=" * 44, b"A" * 9_000]
)
def test_a_file_that_holds_no_key_is_refused_without_showing_it(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyRingUnusable, match="openssl rand") as caught:
        open_key_ring(tmp_path, master_file=str(path))
    assert not content or content.decode(errors="replace") not in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(KeyRingUnusable, match=r"nowhere.*No such file"):
        open_key_ring(tmp_path, master_file=str(tmp_path / "nowhere"))
    with pytest.raises(KeyRingUnusable, match=r"cannot be read|is not a file"):
        open_key_ring(tmp_path, master_file=str(tmp_path))


def test_the_environment_gives_a_key(tmp_path: Path) -> None:
    text = base64.b64encode(FIRST).decode()
    assert open_key_ring(tmp_path, master_text=text).master_id == (MasterKeyRing(FIRST).master_id)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyRingUnusable, match="PENSTOCK_MASTER_KEY"):
        open_key_ring(tmp_path, master_text="nonsense")


def test_two_places_at_once_are_refused(tmp_path: Path) -> None:
    path = write_master(tmp_path / "key", FIRST)
    with pytest.raises(KeyRingUnusable, match="only one of"):
        open_key_ring(
            tmp_path, master_file=str(path), master_text=base64.b64encode(SECOND).decode()
        )


def test_the_key_of_the_data_folder_stays_known_when_another_is_configured(tmp_path: Path) -> None:
    wrapped = open_key_ring(tmp_path).wrap(b"x", context=b"c")
    path = write_master(tmp_path / "key", FIRST)
    ring = open_key_ring(tmp_path, master_file=str(path))
    assert ring.master_id == MasterKeyRing(FIRST).master_id
    assert ring.unwrap(wrapped, context=b"c") == b"x"


async def test_the_configuration_names_old_keys_with_commas(tmp_path: Path) -> None:
    write_master(tmp_path / "a", FIRST)
    write_master(tmp_path / "b", SECOND)
    config = KeysConfig(old_master_files=f"{tmp_path / 'a'}, {tmp_path / 'b'}")
    ring = await start_key_ring(config, tmp_path, env={})
    for master in (FIRST, SECOND):
        old = MasterKeyRing(master).wrap(b"x", context=b"c")
        assert ring.unwrap(old, context=b"c") == b"x"


def test_old_keys_are_bounded(tmp_path: Path) -> None:
    with pytest.raises(KeyRingUnusable, match="more than"):
        open_key_ring(tmp_path, old_master_files=["x"] * (keyring.OLD_MASTERS_MAX + 1))


# ── A key management service ─────────────────────────────────────────────────────────────────

SERVICE = """
import base64, json, sys
asked = json.load(sys.stdin)
with open(sys.argv[1], "a") as log:
    print(asked["operation"], file=log)
turn = lambda text: base64.b64encode(bytes(255 - b for b in base64.b64decode(text))).decode()
context = asked["context"]
if asked["operation"] == "wrap":
    print(json.dumps({"ciphertext": turn(asked["plaintext"]), "context": context}))
else:
    print(json.dumps({"plaintext": turn(asked["ciphertext"])}))
"""


def command_of(folder: Path, script: str, *arguments: str) -> str:
    path = folder / "service.py"
    path.write_text(script)
    return " ".join([sys.executable, str(path), *arguments])


async def test_a_service_unwraps_the_master_key_once_per_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    data = tmp_path / "data"
    data.mkdir()
    config = KeysConfig(kms_command=command_of(tmp_path, SERVICE, str(log)))
    first = await start_key_ring(config, data, env={})
    wrapped = first.wrap(b"x", context=b"c")
    assert [file.name for file in data.iterdir()] == [KMS_NAME]
    assert stat.S_IMODE((data / KMS_NAME).stat().st_mode) == 0o600
    second = await start_key_ring(config, data, env={})
    assert second.unwrap(wrapped, context=b"c") == b"x"
    assert log.read_text().split() == ["wrap", "unwrap"]


def test_a_command_wraps_and_unwraps(tmp_path: Path) -> None:
    log = tmp_path / "log"
    kms = CommandKms(command_of(tmp_path, SERVICE, str(log)))
    wrapped = kms.wrap(b"secret", context=b"c")
    assert wrapped == bytes(255 - byte for byte in b"secret")
    assert kms.unwrap(wrapped, context=b"c") == b"secret"
    assert kms.unwrap(b"\xff", context=b"c") == b"\x00"
    assert log.read_text().split() == ["wrap", "unwrap", "unwrap"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("print('hello')", "is not a JSON object"),
        ("print('{\"ciphertext\": 7}')", "is not a JSON object"),
        ('print(\'{"ciphertext": "!"}\')', "is not a JSON object"),
        (f"print('x' * {REPLY_BYTES_MAX + 1})", "longer than"),
    ],
)
def test_a_service_that_fails_is_named_with_the_reason(
    tmp_path: Path, script: str, why: str
) -> None:
    kms = CommandKms(command_of(tmp_path, script))
    with pytest.raises(KmsFailed, match=why):
        kms.wrap(b"secret", context=b"c")


@pytest.mark.slow
def test_a_service_that_hangs_is_given_up_with_everything_it_started(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "child.wait()\n"
    )
    kms = CommandKms(command_of(tmp_path, script), seconds_max=5)
    with pytest.raises(KmsFailed, match=r"within 5 s"):
        kms.wrap(b"secret", context=b"c")
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline
        os.sched_yield()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("command", ["/nonexistent/kms", "'unclosed", "   "])
def test_a_command_that_cannot_be_run_is_an_error_of_ours(command: str) -> None:
    with pytest.raises(KmsFailed):
        CommandKms(command).wrap(b"x", context=b"c")


def test_a_wrapped_key_that_is_damaged_on_disk_stops_the_start(tmp_path: Path) -> None:
    kms = CommandKms(command_of(tmp_path, SERVICE, str(tmp_path / "log")))
    data = tmp_path / "data"
    data.mkdir()
    open_key_ring(data, kms=kms)
    (data / KMS_NAME).write_text('{"wrapped": "x"}')
    with pytest.raises(KeyRingUnusable, match="damaged"):
        open_key_ring(data, kms=kms)
    (data / KMS_NAME).write_text('{"wrapped": ["AAAA"]}')
    with pytest.raises(KeyRingUnusable, match="wrong length"):
        open_key_ring(data, kms=kms)
