"""Settings of a test run: signals, the spread of files over workers, examples of properties.

Properties are tried with the same examples every time, so that a failure tells of the change that
was made and not of luck. ``EXPLORE=1`` (``make explore``) draws new ones. A run tries at most
EXAMPLES_MAX of each property (fewer with ``QUICK=1``, as ``make quick`` does); ``FULL=1``
(``make faults``) and ``EXPLORE=1`` as many as it names.
"""

import gc
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from tests.harness.full import FULL, ROTATION
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
EXPLORE = bool(os.environ.get("EXPLORE"))
if EXPLORE:
    settings.load_profile("exploring")
else:
    settings.load_profile("steady")
    # Numbers and strings of whatever is loaded are tried as well: with several processes that would
    # depend on which files each of them has been given before.
    providers._get_local_constants = lambda: providers._local_constants

EXAMPLES_MAX = 5 if os.environ.get("QUICK") else 25
PROPERTY_SETTINGS = "_hypothesis_internal_use_settings"  # an attribute of a property's function


def limit_examples(item: pytest.Item) -> None:
    """Let a property try at most EXAMPLES_MAX examples; ``make faults`` finds it by its mark."""
    function = getattr(item, "obj", None)
    function = getattr(function, "__func__", function)
    # A state machine is a class with settings of its own.
    for owner, name in ((getattr(item, "cls", None), "settings"), (function, PROPERTY_SETTINGS)):
        found = getattr(owner, name, None)
        if isinstance(found, settings) and found.max_examples > EXAMPLES_MAX:
            item.add_marker("full_set")
            if not FULL and not EXPLORE:
                setattr(owner, name, settings(found, max_examples=EXAMPLES_MAX))


# ── Workers ──────────────────────────────────────────────────────────────────────────────────

SPARK = "tests/pipeline"  # its files share one Spark session; those in folders below do not
# Folders whose files take longest, in the order in which they are begun, after SPARK and before
# all others: a long file must not be the last that is begun.
LONG = ("tests/pipeline", "tests/lab", "tests/e2e", "tests/faults", "tests/compat", "tests/attacks")
# Files that share the JVM of Apache Kafka's tools (``tests/harness/kafka_tools.py``).
KAFKA_TOOLS = frozenset(
    f"tests/e2e/test_{name}.py"
    for name in (
        "java_patterns",
        "kafka_access_tools",
        "kafka_streams",
        "kafka_tools",
        "offsets_topic",
    )
)


class OneSpark(LoadFileScheduling):  # type: ignore[misc]
    """Gives each file to one worker, all files of SPARK to the same one, and all of KAFKA_TOOLS.

    The marks of ``--dist loadgroup`` cannot do this: pytest-xdist 3.8 adds a group's name to an
    attribute that pytest 9.2 does not read."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        if file.rpartition("/")[0] == SPARK:
            return SPARK
        return "kafka tools" if file in KAFKA_TOOLS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSpark | None:
    return OneSpark(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put SPARK first, then the folders of LONG."""

    def rank(item: pytest.Item) -> int:
        folder = item.path.parent.relative_to(config.rootpath).as_posix()
        ranks = (number for number, each in enumerate(LONG) if folder.startswith(each))
        return -1 if folder == SPARK else next(ranks, len(LONG))

    items.sort(key=rank)
    for item in items:
        limit_examples(item)


def pytest_collection_finish() -> None:
    """Leave modules and tests out of garbage collections, which take 0.35 s each otherwise."""
    gc.collect()
    gc.freeze()


# ── Where the time went ──────────────────────────────────────────────────────────────────────

SLOWEST_FILES = 25
DURATIONS = ".venv/durations.txt"  # for CI to publish
_seconds_by_file: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds_by_file[report.nodeid.split("::", 1)[0]] += report.duration  # type: ignore[assignment]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    """Say how to repeat a failed run. After a long run, print the files that took longest, and
    write the durations of all files to DURATIONS."""
    if exitstatus and not FULL:
        terminalreporter.write_line(f"ROTATION={ROTATION} tries the same parts of large sets again")
    if sum(_seconds_by_file.values()) > 300:
        lines = [f"{seconds:7.0f}  {file}" for file, seconds in _seconds_by_file.most_common()]
        terminalreporter.section("slowest files, seconds")
        terminalreporter.write_line("\n".join(lines[:SLOWEST_FILES]))
        Path(terminalreporter.config.rootpath, DURATIONS).write_text("\n".join(lines) + "\n")
