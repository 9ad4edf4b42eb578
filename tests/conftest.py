"""Settings of a test run: signals, the spread of files over workers, examples of properties.

Properties are tried with the same examples every time, so that a failure tells of the change that
was made and not of luck. ``EXPLORE=1`` (``make explore``) draws new ones.
"""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# A shell starts background commands with SIGINT ignored (`nohup make test &`), and every process
# below inherits that. Tests send SIGINT to servers and commands, so the default is restored here,
# before the first of them starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# They judge how examples come about, by the clock or by chance, and not whether a property holds.
UNJUDGED = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)

settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=UNJUDGED)
settings.register_profile(
    "exploring", deadline=None, print_blob=True, suppress_health_check=UNJUDGED
)
if os.environ.get("EXPLORE"):
    settings.load_profile("exploring")
else:
    settings.load_profile("steady")
    # Numbers and strings of whatever is loaded are tried as well: with several processes that would
    # depend on which files each of them has been given before.
    providers._get_local_constants = lambda: providers._local_constants

# ── Workers ──────────────────────────────────────────────────────────────────────────────────

SPARK = "tests/pipeline"  # its files share one Spark session; those in folders below do not


class OneSpark(LoadFileScheduling):  # type: ignore[misc]
    """Gives each file to one worker, and all files of SPARK to the same one.

    The marks of ``--dist loadgroup`` cannot do this: pytest-xdist 3.8 adds a group's name to an
    attribute that pytest 9.2 does not read."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return SPARK if file.rpartition("/")[0] == SPARK else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSpark | None:
    return OneSpark(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put SPARK first: the longest piece of work must not be the last that is begun."""
    folder = Path(config.rootpath, SPARK)
    items.sort(key=lambda item: item.path.parent != folder)


# ── Where the time went ──────────────────────────────────────────────────────────────────────

SLOWEST_FILES = 25
_seconds_by_file: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds_by_file[report.nodeid.split("::", 1)[0]] += report.duration  # type: ignore[assignment]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the files that took longest, after a long run."""
    if sum(_seconds_by_file.values()) > 300:
        terminalreporter.section("slowest files, seconds")
        for file, seconds in _seconds_by_file.most_common(SLOWEST_FILES):
            terminalreporter.write_line(f"{seconds:7.0f}  {file}")
