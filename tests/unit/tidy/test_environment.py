"""The environment that `make` creates has a pip of its own."""

import json
import subprocess
from pathlib import Path

from tools.environment import create


def test_pip_sees_the_environment_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "with a space" / ".venv"
    create(folder)
    command = [str(folder / "bin" / "pip"), "inspect"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    packages = json.loads(said.stdout)["installed"]
    assert "pip" in {one["metadata"]["name"] for one in packages}
    assert all(one["metadata_location"].startswith(str(folder)) for one in packages)
