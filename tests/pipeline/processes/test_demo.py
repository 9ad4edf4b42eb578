"""``make pipeline-demo``: what a newcomer runs has to work as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.server import Server

ROOT = Path(__file__).parents[3]


def demo(folder: Path, endpoint: str, *, seconds: float) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    return subprocess.run(
        [sys.executable, "tools/pipeline_demo.py", "--folder", folder, "--endpoint", endpoint],
        cwd=ROOT,
        env=environment,
        text=True,
        capture_output=True,
        timeout=seconds,
        check=False,
    )


def test_without_a_server_the_demo_says_what_to_start(tmp_path: Path) -> None:
    done = demo(tmp_path / "demo", "http://127.0.0.1:1", seconds=60)
    assert done.returncode == 1
    assert "make run" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "demo").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("classes")
def test_the_demo_goes_from_messages_to_pages(tmp_path: Path) -> None:
    with Server(tmp_path / "data", fsync="never", kafka_port=0) as server:
        done = demo(tmp_path / "demo", server.url, seconds=840)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (tmp_path / "demo" / "penstock-reports.html").as_uri() in done.stdout
        for name in ("usage", "billing", "hotspots"):
            page = tmp_path / "demo" / f"penstock-{name}.html"
            assert page.as_uri() in done.stdout
            text = page.read_text()
            assert "<svg" in text
            if name != "billing":
                assert "demo-orders" in text
        usage = (tmp_path / "demo" / "penstock-usage.html").read_text()
        assert len(re.findall(r'<td class="n"[^>]*>2,000</td>', usage)) == 2
        for table in ("usage_partial", "invoice", "archive/demo-clicks", "metrics_1m"):
            assert str(tmp_path / "demo" / "lake" / table) in done.stdout
        server.assert_no_traceback()
