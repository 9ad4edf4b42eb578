"""A clock that is wrong: the wall clock of one node jumps ahead, back, and then runs too fast, and
its monotonic clocks go on as they should. Done by libfaketime below the program: it answers the
calls that ask for the time, and what it answers is read from a file that is rewritten while the
node runs. (Time namespaces have no wall clock of their own, and setting the machine's would set
everybody's.)

The node is told to stop and started with the library, and at the end once more without it: only
one node at a time pays for it."""

from __future__ import annotations

import http.client
import time
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path

from tests.harness.ledger import now_ns
from tests.lab.faults import START_SECONDS_MAX, Fault

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
LACKING = None if LIBRARY else "libfaketime is not installed (Debian: faketime)"
HOUR_SECONDS = 3_600
STEP_SECONDS = 5.0  # of each wrong time, under load
SLACK_SECONDS = 120  # by which a clock that was not set can never be off
FAKING = ("LD_PRELOAD", "FAKETIME_")  # what variables that do it begin with
LOOK_SECONDS = 1  # how often the library looks into its file


class WrongClock(Fault):
    """F14: the leader's wall clock is an hour ahead, then an hour behind, then twice as fast."""

    name = "F14 wrong clock"
    needs_faketime = True
    is_clock_wrong = True

    def inject(self) -> None:
        self._number = number = self.stage.leader()
        self._node = node = self.cluster.nodes[number]
        self.victims = (f"n{number}",)
        self._file = node.data.parent / "faketime"
        self._set("+0")
        self.injected_at = now_ns()
        self._restart(
            {
                "LD_PRELOAD": str(LIBRARY),
                "FAKETIME_TIMESTAMP_FILE": str(self._file),
                "FAKETIME_CACHE_DURATION": str(LOOK_SECONDS),
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        )
        self.stage.wait(lambda: number in self.cluster.leaders(), f"n{number} leads again")
        seen = []
        for text, low, high in (
            (f"+{HOUR_SECONDS}", HOUR_SECONDS - SLACK_SECONDS, HOUR_SECONDS + SLACK_SECONDS),
            (f"-{HOUR_SECONDS}", -HOUR_SECONDS - SLACK_SECONDS, -HOUR_SECONDS + SLACK_SECONDS),
            ("+0 x2", 1, HOUR_SECONDS),
        ):
            self._set(text)
            self.stage.wait(partial(self._is_off, low, high), f"the clock of n{number} is {text}")
            self._hold()
            off = self._off_seconds()
            if low <= off <= high:
                seen.append(f"{off:+.0f} s")
        if len(seen) == 3:
            self.evidence = f"its clock was off by {', '.join(seen)}"

    def _set(self, text: str) -> None:
        self._file.write_text(f"{text}\n", "ascii")

    def _hold(self) -> None:
        until = now_ns() + int(STEP_SECONDS * 1e9)
        self.stage.wait(lambda: now_ns() >= until, "the time of a wrong clock")

    def _is_off(self, low: float, high: float) -> bool:
        return low <= self._off_seconds() <= high

    def _off_seconds(self) -> float:
        """By the Date of an answer of the node; 0 when there is none."""
        host = self._node.admin_url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=5)
        try:
            connection.request("GET", "/healthz")
            told = connection.getresponse().getheader("Date")
        except (OSError, http.client.HTTPException):
            return 0.0
        finally:
            connection.close()
        return parsedate_to_datetime(told).timestamp() - time.time() if told else 0.0

    def _restart(self, env: dict[str, str]) -> None:
        if self._node.is_running:
            code = self._node.stop()
            assert code == 0, f"exit code {code} of a node that was told to stop"
        self._node.env.update(env)
        self._node.start(seconds=START_SECONDS_MAX)
        self.stage.wait(lambda: self.cluster.is_settled, f"settled after n{self._number}")

    def heal(self) -> None:
        if self._node.env.get("LD_PRELOAD"):
            self._set("+0")
            for name in [name for name in self._node.env if name.startswith(FAKING)]:
                del self._node.env[name]
            self._restart({})
