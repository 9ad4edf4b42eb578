"""Jars that Maven fetches are used only if they are those whose sums are committed. A script stands
in for Maven."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from benchmarks.kafka.systems import apache_jars
from benchmarks.kafka.systems.apache_jars import fetch_jars
from benchmarks.server import NotAvailable

JARS = {"a-1.jar": b"a", "b-2.jar": b"b"}


@pytest.fixture
def lib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    sums = tmp_path / "jars.sha256"
    sums.write_text(
        "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in JARS.items())
    )
    monkeypatch.setattr(apache_jars, "SUMS", sums)
    monkeypatch.setattr(apache_jars, "LIB", tmp_path / "cache" / "kafka")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    (tmp_path / "bin").mkdir()
    return tmp_path / "cache" / "kafka"


def maven(folder: Path, jars: dict[str, bytes]) -> Path:
    """A Maven that has these jars; returns where it notes its calls."""
    lines = [f'printf {data.decode()} > "$to/{name}"' for name, data in jars.items()]
    calls = folder / "calls"
    script = folder / "bin" / "mvn"
    script.write_text(
        "\n".join(("#!/bin/sh", f"echo called >> {calls}", 'to="${6#*=}"', *lines, "")),
    )
    script.chmod(0o755)
    return calls


def content(lib: Path) -> dict[str, bytes]:
    return {jar.name: jar.read_bytes() for jar in lib.glob("*.jar")}


def test_jars_are_fetched_once(tmp_path: Path, lib: Path) -> None:
    calls = maven(tmp_path, JARS)
    fetch_jars()
    assert content(lib) == JARS
    fetch_jars()
    assert calls.read_text() == "called\n"
    (lib / "a-1.jar").write_bytes(b"changed")
    fetch_jars()
    assert content(lib) == JARS


@pytest.mark.parametrize(
    "jars", [{**JARS, "a-1.jar": b"other"}, {**JARS, "more.jar": b"m"}, {"a-1.jar": b"a"}]
)
def test_other_jars_are_rejected(tmp_path: Path, lib: Path, jars: dict[str, bytes]) -> None:
    maven(tmp_path, jars)
    with pytest.raises(RuntimeError, match=r"a-1\.jar|more\.jar|b-2\.jar"):
        fetch_jars()
    assert not lib.exists()


def test_without_maven_they_are_not_available(lib: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NotAvailable, match="needs mvn"):
        fetch_jars()
    assert not lib.exists()
