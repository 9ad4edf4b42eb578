"""Files of ``penstock generate``, the tools that read them, and what the files say."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(sys.prefix) / "deploy" / "bin"


def tool(name: str) -> str:
    found = shutil.which(name, path=f"{TOOLS}:{os.environ['PATH']}")
    if found is None:
        pytest.fail(f"{name} is missing: make setup, tools/bootstrap.sh tests", pytrace=False)
    return found


def run(*command: str, **rest: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **rest)


def generated(*arguments: str) -> str:
    done = run(sys.executable, "-m", "penstock", "generate", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(text: str) -> list[dict[str, Any]]:
    """The documents of a YAML text. Only the environment of the tools has a parser."""
    python = Path(tool("kubernetes-validate")).with_name("python")
    program = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"
    done = run(str(python), "-c", program, input=text)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """The instructions of the last stage, continued lines joined."""
    lines = [line for line in dockerfile.splitlines() if not line.startswith("#")]
    whole = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    split = [line.partition(" ") for line in whole.splitlines() if line.strip()]
    last = max(at for at, (word, _, _) in enumerate(split) if word == "FROM")
    return [(word, rest.strip()) for word, _, rest in split[last:]]


def image_environment(dockerfile: str) -> dict[str, str]:
    """The settings that an image brings along."""
    found = [rest for word, rest in instructions(dockerfile) if word == "ENV"]
    pairs = [pair.partition("=") for text in found for pair in shlex.split(text)]
    return {name: value for name, _, value in pairs if name.startswith("PENSTOCK_")}


def settings_of(env: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in env.items()}
