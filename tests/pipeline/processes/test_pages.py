"""Report pages in a real browser, on a telephone and on a desk."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path

import pytest
from tests.attacks.chromium import BROWSER
from tests.unit.pipeline.test_reports import (
    START,
    billed,
    context,
    used,
    with_telemetry,
    with_usage,
)

from penstock.pipeline.lake import Lake
from penstock.pipeline.registry import jobs_of

JOBS = jobs_of("report")

# Frames as wide as a screen; what sticks out of each on its right side; figures in tiles that are
# broken into lines; and labels of plots that lie on one another.
MEASURE = """<!doctype html><body>{frames}<script>
const told = {{}};
window.onload = () => {{ for (const frame of document.querySelectorAll("iframe")) {{
  const width = Number(frame.width), seen = frame.contentDocument;
  const cells = [...seen.querySelectorAll("td, th, dd, svg, h1, a")].filter(e => e.offsetParent);
  const out = cells.filter(e => e.getBoundingClientRect().right > width + 0.5);
  out.push(...[...seen.querySelectorAll("dl dd")].filter(e => e.clientHeight > 40));
  for (const plot of seen.querySelectorAll("svg")) {{
    const labels = [...plot.querySelectorAll("text")].map(e => [e, e.getBoundingClientRect()]);
    out.push(...labels.filter(([e, a]) => labels.some(([f, b]) => e !== f && a.left < b.right - 1 &&
      b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)).map(([e]) => e));
  }}
  told[frame.title] = [cells.length > 0, seen.documentElement.scrollWidth <= width,
                       out.map(e => e.textContent.trim().slice(0, 40))];
}} document.querySelector("pre").textContent = JSON.stringify(told); }};
</script><pre></pre>"""
FRAME = '<iframe title="{name} at {width}" src="{page}" width="{width}" height="900"></iframe>'


@pytest.mark.timeout(300)
def test_every_page_can_be_read_on_a_telephone_and_on_a_desk(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with_usage(lake, used(hours=6))
    billed(lake)
    with_telemetry(lake)
    folder = tmp_path / "pages"
    for name in JOBS:
        since_ms = int(START.timestamp() * 1_000) if name == "hotspots" else None
        JOBS[name].run(context(lake, tmp_path, out=f"{folder}/", since_ms=since_ms))
    frames = "".join(
        FRAME.format(name=page.name, page=page.as_uri(), width=width)
        for page in sorted(folder.iterdir())
        for width in (390, 1280)
    )
    (tmp_path / "frames.html").write_text(MEASURE.format(frames=frames))
    done = subprocess.run(
        [
            BROWSER,
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"),
            f"--user-data-dir={tmp_path / 'profile'}",
            *("--window-size=1400,1000", "--timeout=60000", "--dump-dom"),
            (tmp_path / "frames.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    found = re.search(r"<pre>(.*?)</pre>", done.stdout)
    assert found is not None, done.stderr[-2_000:]
    told = json.loads(html.unescape(found[1]))
    assert len(told) == 2 * 6
    assert {name: each for name, each in told.items() if each != [True, True, []]} == {}
