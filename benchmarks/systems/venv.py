"""A Python environment of its own for a peer, from its hashed lock, so that its dependencies meet
none of ours. Made once, remembered by a stamp that holds the lock's digest."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.server import NotAvailable

ROOT = Path(__file__).parents[2]
INSTALL_S_MAX = 600


def python_of(name: str) -> Path:
    return ROOT / "benchmarks" / ".venvs" / name / "bin" / "python"


def prepare(name: str) -> None:
    lock = ROOT / "requirements" / f"{name}.lock"
    python = python_of(name)
    folder = python.parents[1]
    stamp = folder / ".installed"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--require-hashes", "-r", str(lock)]
    try:
        for command in ([sys.executable, "-m", "venv", str(folder)], pip):
            subprocess.run(
                command, check=True, timeout=INSTALL_S_MAX, capture_output=True, text=True
            )
    except subprocess.TimeoutExpired as error:
        raise NotAvailable(f"installing took more than {INSTALL_S_MAX} s") from error
    except subprocess.CalledProcessError as error:
        lines = [line for line in str(error.stderr).splitlines() if line.strip()]
        raise NotAvailable(f"cannot install: {lines[-1][:200] if lines else error}") from error
    stamp.write_text(digest)
