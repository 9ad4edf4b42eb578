"""Create a virtual environment with the pip that comes with Python, in one second instead of nine.

    python3 tools/environment.py .venv

`python3 -m venv` installs pip by running pip, which compiles every module of pip (and, up to
Python 3.11, of setuptools). This script unpacks the wheel; Python compiles what it imports.
"""

import ensurepip
import shlex
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path


def pip_wheel() -> Path | None:
    """Return the wheel that `ensurepip` installs; Linux distributions have a folder for it."""
    bundled = Path(ensurepip.__file__).parent / "_bundled"
    folders = [sysconfig.get_config_var("WHEEL_PKG_DIR"), bundled]
    found = [wheel for folder in folders if folder for wheel in Path(folder).glob("pip-*.whl")]
    return found[0] if found else None


def create(folder: Path) -> None:
    wheel = pip_wheel()
    venv.create(folder, symlinks=True, with_pip=wheel is None)
    if wheel is None:
        return
    modules = sysconfig.get_path("purelib", "venv", {"base": str(folder)})
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(modules)
    command = folder / "bin" / "pip"
    python = shlex.quote(str(folder.absolute() / "bin" / "python"))
    command.write_text(f'#!/bin/sh\nexec {python} -m pip "$@"\n')
    command.chmod(0o755)


if __name__ == "__main__":
    create(Path(sys.argv[1]))
