"""What is built for a package index: its files, its metadata, its licences."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from tools.package_metadata import project_urls, readme_for_index

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PLACE = "https://git.example.org/penstock"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_source_archive_has_what_a_build_needs_and_no_tests(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = [name.partition("/")[2] for name in files.getnames()]
    assert {"src/penstock/cli/deploy/Dockerfile", "README.md", "tools/package_metadata.py"} <= {
        *names
    }
    tops = {name.partition("/")[0] for name in names}
    assert not tops & {"tests", "benchmarks", ".ci", "requirements"}
    assert archive.stat().st_size < 3_000_000


def test_the_wheel_offers_the_command_the_plugin_and_the_licences(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        about = {name.rpartition("/")[2]: name for name in names if ".dist-info/" in name}
        entries = files.read(about["entry_points.txt"]).decode()
        metadata = HeaderParser().parsestr(files.read(about["METADATA"]).decode())
    assert "penstock = penstock.cli.main:main" in entries
    assert "[pytest11]\npenstock = penstock.testing" in entries
    assert {"LICENSE", "THIRD_PARTY.md"} <= set(about)
    classifiers = metadata.get_all("Classifier") or []
    assert "Programming Language :: Python :: 3.14" in classifiers
    assert {*(metadata.get_all("Provides-Extra") or [])} == {"all", "cluster", "spark", "testing"}
    assert all(one.startswith("penstock/") or "/" in one for one in names)
    packaged = {one.rpartition("/")[2] for one in names if one.startswith("penstock/cli/deploy/")}
    assert packaged >= {"examples.toml", "Dockerfile", "penstock.service"}


def test_no_link_of_the_page_on_an_index_is_relative() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    relative = re.compile(r"\]\((?!https?://|#)")
    assert relative.search(text)
    assert not relative.search(readme_for_index(text, ""))
    assert "[docs/kafka.md]" not in readme_for_index(text, "")
    linked = readme_for_index(text, PLACE)
    assert not relative.search(linked)
    assert f"[docs/kafka.md]({PLACE}/blob/main/docs/kafka.md)" in linked


def test_the_links_of_the_project_are_files_of_the_repository() -> None:
    assert project_urls("") == {}
    prefix = f"{PLACE}/blob/main/"
    pages = [url.removeprefix(prefix) for url in project_urls(PLACE).values() if prefix in url]
    assert len(pages) == 3
    assert all((ROOT / page).is_file() for page in pages)


def test_an_extra_installs_only_what_code_imports() -> None:
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    modules = {"grpcio": "grpc"}
    for extra, requirements in PROJECT["optional-dependencies"].items():
        for requirement in requirements:
            name = re.split(r"[\[>=<]", requirement)[0]
            if name == "penstock":
                continue
            module = modules.get(name, name)
            found = re.search(rf"^\s*(import|from) {module}\b|\"{module}\"", code, re.MULTILINE)
            assert found, f"{name} of the extra {extra} is imported nowhere"


def test_everything_that_is_installed_is_named_with_its_licence() -> None:
    listed = set(
        re.findall(
            r"^\| ([a-z][\w-]+) \| ", (ROOT / "THIRD_PARTY.md").read_text("utf-8"), re.MULTILINE
        )
    )
    lock = (ROOT / "requirements" / "run.lock").read_text("utf-8")
    entries = re.findall(r"^([\w-]+)==.*?\n(?=\S|\Z)", lock + "\n", re.MULTILINE | re.DOTALL)
    sources = dict(re.findall(r"^([\w-]+)==[\s\S]*?# via\s+(?:#\s+)?(\S+)", lock, re.MULTILINE))
    assert len(entries) > 15
    assert set(sources) == set(entries)
    tools = {"hatchling", "editables"}  # what builds the package is not installed with it
    installed = {name for name in entries if name not in tools and sources[name] not in tools}
    extras = {
        re.split(r"[\[>=<]", requirement)[0]
        for requirements in PROJECT["optional-dependencies"].values()
        for requirement in requirements
    } - {"penstock"}
    assert installed | extras <= listed, (installed | extras) - listed
    assert listed <= installed | extras | {"package"}, listed - installed - extras


def test_private_keys_are_not_committed_by_accident() -> None:
    for path in ("penstock-certs/penstock-key.pem", "certs/ca-key.pem", "nodes/n1-key.pem"):
        done = subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False)
        if done.returncode == 128:
            pytest.skip("not a git checkout")
        assert done.returncode == 0, path
