"""A program from the machine, or else from a Debian package that is unpacked into the cache: never
installed, so that nothing of the machine changes and no service starts."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.server import NotAvailable

CACHE = Path(__file__).parents[2] / ".cache" / "debian"
FETCH_S_MAX = 120
PLACES = ("usr/bin", "usr/sbin")


def find(program: str) -> Path | None:
    found = shutil.which(program)
    if found is not None:
        return Path(found)
    return next((CACHE / p / program for p in PLACES if (CACHE / p / program).exists()), None)


def libraries() -> dict[str, str]:
    """For the environment of an unpacked program."""
    folders = sorted({str(path.parent) for path in CACHE.glob("usr/lib/**/*.so*")})
    return {"LD_LIBRARY_PATH": os.pathsep.join(folders)} if folders else {}


def prepare(program: str, packages: Sequence[str]) -> None:
    if find(program) is not None:
        return
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise NotAvailable(f"{program} is not installed, and there is no {tool} to fetch it")
    folder = CACHE / f"{program}.packages"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _run(["apt-get", "download", *packages], folder)
        for package in sorted(folder.glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(CACHE)], folder)
    except subprocess.TimeoutExpired as error:
        raise NotAvailable(f"fetching took more than {FETCH_S_MAX} s") from error
    except subprocess.CalledProcessError as error:
        lines = [line for line in str(error.stderr).splitlines() if line.strip()]
        raise NotAvailable(f"cannot fetch: {lines[-1][:200] if lines else error}") from error
    if find(program) is None:
        raise NotAvailable(f"the packages hold no {program}")


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(
        command, cwd=folder, check=True, timeout=FETCH_S_MAX, capture_output=True, text=True
    )
