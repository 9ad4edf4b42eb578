"""The AWS command line, run as its users run it: one process per command, JSON in and out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

AWS = Path(sys.prefix) / "awscli" / "bin" / "aws"
Aws = Callable[..., Any]


def aws_command(service: str, url: str, home: Path) -> Aws:
    """``aws("create-topic", "--name", "t")`` returns the decoded reply, None if it is empty;
    ``is_ok=False`` expects failure and returns stderr."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_PAGER": "",
    }

    def run(*arguments: str, is_ok: bool = True) -> Any:
        done = subprocess.run(
            [str(AWS), "--endpoint-url", url, "--output", "json", service, *arguments],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if not is_ok:
            assert done.returncode != 0, done.stdout
            return done.stderr
        assert done.returncode == 0, f"aws {service} {' '.join(arguments)}\n{done.stderr}"
        return json.loads(done.stdout) if done.stdout.strip() else None

    return run
