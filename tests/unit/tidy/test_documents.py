"""What the documents say is checked like code: paths exist, versions agree, bounds hold."""

import dataclasses
import re
import subprocess
from pathlib import Path

import pytest

from penstock import __version__
from penstock.node.configuration.config import AuthMode, Config
from penstock.node.configuration.exposure import ExposureRefused, exposed_addresses, is_auth_on

ROOT = Path(__file__).parents[3]


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def test_the_readme_stays_short() -> None:
    assert len(read("README.md").splitlines()) <= 150


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_every_path_a_document_names_exists(name: str) -> None:
    named = set(re.findall(r"`((?:src|docs|tests|benchmarks|tools)/[\w./-]+)`", read(name)))
    named |= set(re.findall(r"\]\((?!http)([\w./-]+)\)", read(name)))
    missing = [path for path in sorted(named) if not (ROOT / path).exists()]
    assert not missing


def test_a_messages_path_is_given_in_order_and_every_step_exists() -> None:
    steps = re.findall(r"^(\d+)\. `([\w./]+)`", read("ARCHITECTURE.md"), re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert len(steps) >= 15
    assert all((ROOT / path).is_file() for _, path in steps)


def test_the_changelog_knows_this_version() -> None:
    assert f"## [{__version__}]" in read("CHANGELOG.md")


def test_the_security_policy_states_the_defaults_of_the_configuration() -> None:
    config = Config()
    text = read("SECURITY.md")
    stated = dict(re.findall(r"^\| `([\w.]+)` \| `?([^`|]+?)`? \|", text, re.MULTILINE))
    assert {"auth.mode", "http.listen", "tls.cert_file", "auth.insecure"} <= set(stated)
    for key, value in stated.items():
        section, _, name = key.partition(".")
        default = getattr(getattr(config, section), name)
        shown = str(default).lower() if isinstance(default, bool) else str(default)
        assert value == (shown or "empty"), key
    # "auto" means what the document says of it.
    assert config.auth.mode is AuthMode.AUTO
    assert not is_auth_on(config)
    assert not exposed_addresses(config)
    open_to_all = dataclasses.replace(config.http, listen="0.0.0.0:9324")
    certificates = dataclasses.replace(config.tls, cert_file="cert.pem")
    assert is_auth_on(dataclasses.replace(config, http=open_to_all, tls=certificates))
    with pytest.raises(ExposureRefused):
        is_auth_on(dataclasses.replace(config, http=open_to_all))
    assert "no authentication" not in text


def test_the_security_policy_supports_this_version() -> None:
    minor = ".".join(__version__.split(".")[:2])
    assert f"| {minor} (newest release) | yes |" in read("SECURITY.md")


def test_every_make_target_a_document_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"^make ([a-z]+)$", read(name), re.MULTILINE))
        named |= set(re.findall(r"`make ([a-z]+)`", read(name)))
        assert named <= targets, name


def test_the_locks_carry_hashes_and_no_addresses() -> None:
    locks = sorted((ROOT / "requirements").glob("*.lock"))
    assert locks
    for lock in locks:
        text = lock.read_text("utf-8")
        assert "://" not in text, lock.name
        assert "--hash=sha256:" in text, lock.name


def tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return listed.stdout.splitlines()


def test_no_module_has_a_name_that_says_nothing() -> None:
    banned = {"util", "utils", "common", "helpers", "misc", "base", "handlers", "types"}
    found = [name for name in tracked() if Path(name).stem in banned and name.endswith(".py")]
    assert not found


def test_every_module_of_the_package_says_what_it_is() -> None:
    silent = [
        name
        for name in tracked()
        if name.startswith("src/penstock/")
        and name.endswith(".py")
        and "/generated/" not in name
        and (text := read(name)).strip()
        and not text.lstrip().startswith('"""')
    ]
    assert not silent


# It compiles codecs from the message classes of this package; nothing comes from outside.
COMPILER = "src/penstock/wire/kafka/compiler.py"


def test_nothing_unpickles_or_evaluates() -> None:
    dangerous = re.compile(r"\b(pickle|marshal|yaml)\b|(?<![\w.])(eval|exec)\(")
    found = [
        f"{name}: {line.strip()}"
        for name in tracked()
        if name.startswith("src/penstock/") and name.endswith(".py") and name != COMPILER
        for line in read(name).splitlines()
        if dangerous.search(line) and not line.lstrip().startswith(("#", '"""'))
    ]
    assert not found
