"""What the source must not hold at all: ways to run what a client sent, to follow where it points,
or to read what it names. Gates, so that none of it comes in by a later change."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.harness.client import Fault, RawClient

import penstock
from penstock.frontend.aws.sqs.actions import ACTIONS
from penstock.frontend.aws.sqs.rules.queue_attributes import TABLE as QUEUE_TABLE
from penstock.frontend.kafka.configs.group_configs import GROUP_TABLE
from penstock.frontend.kafka.configs.topic_configs import TABLE
from penstock.wire.aws import shapes

SOURCE = Path(penstock.__file__).parent
CLIENTS = {"cli", "pipeline", "testing.py"}  # no part of the server, which may not import them
FILES = sorted(path for path in SOURCE.rglob("*.py") if "generated" not in path.parts)

# Modules that turn bytes into objects or code, or parse markup with all that comes with it.
BANNED_MODULES = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "jsonpickle",
    "yaml", "ruamel", "imp", "code", "codeop", "pty", "xml", "lxml", "defusedxml", "xmlrpc",
    "html.parser", "tarfile", "zipfile", "telnetlib", "crypt",
}  # fmt: skip
BANNED_CALLS = {"eval", "exec", "compile", "__import__", "globals", "breakpoint", "input"}
BANNED_METHODS = {
    "os.system", "os.popen", "os.execv", "os.execvp", "os.spawnv", "tempfile.mktemp",
    "ssl._create_unverified_context", "ssl.wrap_socket", "shutil.unpack_archive",
}  # fmt: skip
# Where each may be used all the same, and why.
ALLOWED = {
    # Imports a module by a name that the generated table holds, never one from outside.
    "wire/kafka/apis.py": {"importlib.import_module"},
    "cli/terminal/lazy.py": {"importlib.import_module"},
    # Compiles codecs from the message classes of this package.
    "wire/kafka/compiler.py": {"compile", "exec"},
    # A package that may not be installed.
    "pipeline/spark/java.py": {"importlib.import_module"},
    # Writes our own code into an archive for Spark's executors, and reads none.
    "pipeline/session.py": {"zipfile"},
    # Writes the archive for a bug report, and reads none.
    "cli/operate/debug.py": {"tarfile"},
    # Asks a person at a terminal.
    "cli": {"input"},
}


def allowed(path: Path) -> set[str]:
    name = str(path.relative_to(SOURCE))
    found: set[str] = set()
    for place, what in ALLOWED.items():
        if name == place or name.startswith(f"{place}/"):
            found |= what
    return found


def uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, f"import {alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, f"import {node.module or ''}"
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            yield node.lineno, name
            for keyword in node.keywords:
                if isinstance(keyword.value, ast.Constant):
                    yield node.lineno, f"{name}({keyword.arg}={keyword.value.value!r})"


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


@cache
def uses_in(path: Path) -> list[tuple[int, str]]:
    return [*uses(ast.parse(path.read_text("utf-8")))]


def findings(path: Path, used: Iterable[tuple[int, str]]) -> list[str]:
    found = []
    fine = allowed(path)
    for line, use in used:
        is_banned = (
            use in BANNED_CALLS
            or use in BANNED_METHODS
            or (use.startswith("import ") and is_banned_module(use.removeprefix("import ")))
            or use == "importlib.import_module"
            or use.endswith(("(shell=True)", "(verify=False)", "(check_hostname=False)"))
        )
        if is_banned and use.removeprefix("import ") not in fine:
            found.append(f"{path.name}:{line}: {use}")
    return found


def is_banned_module(name: str) -> bool:
    return name in BANNED_MODULES or name.partition(".")[0] in BANNED_MODULES


def test_nothing_is_unpickled_evaluated_or_run_by_a_shell() -> None:
    found = [line for path in FILES for line in findings(path, uses_in(path))]
    assert len(FILES) > 100
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from yaml import load",
        "import xml.etree.ElementTree as et",
        "eval(text)",
        "exec(compile(text, 'x', 'exec'))",
        "import os\nos.system(text)",
        "subprocess.run(text, shell=True)",
        "importlib.import_module(name)",
        "__import__(name)",
    ],
)
def test_the_gate_sees_what_it_is_for(line: str) -> None:
    assert findings(SOURCE / "frontend" / "new.py", uses(ast.parse(line)))


def test_our_own_part_never_calls_out() -> None:
    """No client library is in the server: what it cannot do it cannot be tricked into."""
    clients = {"requests", "httpx", "aiohttp", "urllib.request", "urllib3", "http.client", "ftplib"}
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {use}"
        for path in FILES
        if path.relative_to(SOURCE).parts[0] not in CLIENTS
        for line, use in uses_in(path)
        if use.startswith("import ")
        and {use.removeprefix("import "), use.removeprefix("import ").partition(".")[0]} & clients
    ]
    assert not found


# What in other brokers' settings led to files being read, addresses dialled and classes loaded.
POINTING = (
    "file:///etc/passwd",
    "/etc/passwd",
    "http://169.254.169.254/",
    "${file:/etc/passwd:root}",
    "${env:HOME}",
    "com.sun.security.auth.module.JndiLoginModule required;",
    "org.example.Evil",
)


@pytest.mark.parametrize("name", [*TABLE, *GROUP_TABLE])
def test_no_setting_of_a_topic_or_group_names_a_place_a_class_or_a_file(name: str) -> None:
    """They are numbers, truth values and words from fixed lists."""
    row = TABLE.get(name) or GROUP_TABLE[name]
    for value in POINTING:
        with pytest.raises(ValueError):
            row.read(value)


LABELS = {"KmsMasterKeyId"}  # any word, shown again and never looked up


@pytest.mark.parametrize("attribute", sorted(set(QUEUE_TABLE) - LABELS))
def test_no_attribute_of_a_queue_names_a_place_a_class_or_a_file(
    bystander: RawClient, attribute: str
) -> None:
    url = bystander.call("CreateQueue", {"QueueName": "pointing"})["QueueUrl"]
    for value in POINTING:
        with pytest.raises(Fault) as caught:
            bystander.call(
                "SetQueueAttributes", {"QueueUrl": url, "Attributes": {attribute: value}}
            )
        assert caught.value.status == 400


ADDRESS = re.compile(r"(?i)(ur[il]|path|file|host|address|endpoint|class)s?$")


def test_no_action_takes_an_address_to_call_back() -> None:
    """Of SQS, queue URLs are the only addresses; they are names, and never dialled."""
    fields = {
        field
        for kind in vars(shapes).values()
        if isinstance(kind, type) and hasattr(kind, "__struct_fields__")
        for field in kind.__struct_fields__
    }
    assert len(ACTIONS) > 20
    pointing = {field for field in fields if ADDRESS.search(field)}
    assert pointing <= {"queue_url", "queue_urls"}, pointing
