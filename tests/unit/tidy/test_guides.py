"""What the pages in docs/ name exists: files, headings, commands, options, settings, actions."""

import re
import shlex
from pathlib import Path

import click
import pytest

from penstock.cli.command import global_options
from penstock.cli.main import root
from penstock.frontend.aws.sqs.actions import ACTIONS
from penstock.frontend.aws.sqs.rules.queue_attributes import TABLE
from penstock.model import limits
from penstock.node.configuration.config import Config
from penstock.node.configuration.settings import declared

DOCS = Path(__file__).parents[3] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
GLOBAL = {name for one in global_options(from_environment=False) for name in one.opts}


def text_of(page: Path) -> str:
    return page.read_text("utf-8")


def anchors(page: Path) -> set[str]:
    """The anchors that hosts of repositories make of headings."""
    titles = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.replace(" ", "-") for title in kept}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", prose):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_the_index_names_every_page() -> None:
    index = text_of(DOCS / "README.md")
    missing = [page.name for page in PAGES if f"({page.name})" not in index]
    assert missing == ["README.md"]


def command_lines(page: Path) -> list[str]:
    """Commands in shell blocks, in the text and in comments, up to a pipe or a comment."""
    text = text_of(page).replace("-->", "")
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shell = re.sub(r"\\\n\s*", " ", "\n".join(blocks))
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"(?:^|[\s(/])penstock ([a-z][^|;&#\n)>]*)", shell, re.MULTILINE)
    return found + re.findall(r"`penstock ([a-z][^`|;&#\n]*)`", prose)


def check(line: str) -> None:
    words = shlex.split(line.replace("'", "").replace('"', ""))
    command: click.Command = root
    context = click.Context(root, info_name="penstock")
    # Words in other characters stand for a name.
    while words and isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        found = command.get_command(context, words[0])
        assert found is not None, f"penstock {line}: no command {words[0]}"
        command, context = found, click.Context(found, context, words.pop(0))
    if isinstance(command, click.Group):
        return
    own = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    known = GLOBAL | {"--help"} | own
    for word in words:
        if word.startswith("--"):
            option = word.partition("=")[0].rstrip(",.:")
            assert option in known, f"penstock {line}: no option {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_exists(page: Path) -> None:
    for line in command_lines(page):
        check(line)


def test_a_command_that_does_not_exist_is_found() -> None:
    with pytest.raises(AssertionError, match="no command create-queue"):
        check("create-queue jobs")
    with pytest.raises(AssertionError, match="no option --partitons"):
        check("queue create jobs --partitons 4")
    assert len(command_lines(DOCS / "operate.md")) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_exists(page: Path) -> None:
    known = declared(Config)
    sections = "|".join(sorted({setting.section for setting in known.values()}))
    named = set(re.findall(rf"`((?:{sections})\.[a-z_]+)(?:`| =)", text_of(page)))
    known_files = {f"{key}_file" for key, setting in known.items() if setting.is_secret}
    variables = re.findall(r"\bPENSTOCK_([A-Z]+)__([A-Z_]+[A-Z])", text_of(page))
    named |= {f"{section}.{key}".lower() for section, key in variables if section != "SECTION"}
    of_kafka = {"log.preallocate", "metadata.version"}
    unknown = named - set(known) - known_files - of_kafka
    assert not unknown


def test_every_sqs_action_attribute_and_limit_is_described() -> None:
    page = text_of(DOCS / "sqs.md")
    assert not [name for name in ACTIONS if f"`{name}`" not in page]
    assert not [name for name in TABLE if f"`{name}`" not in page]
    named = re.search(r"## Limits\n(.*?)\n## ", page, re.DOTALL)
    assert named is not None
    for value, unit in (
        (limits.MESSAGE_BYTES_MAX, " bytes"),
        (limits.BATCH_ENTRIES_MAX, " |"),
        (limits.LEASE_MS_MAX // 1_000, " s"),
        (limits.DELAY_MS_MAX // 1_000, " s"),
        (limits.WAIT_MS_MAX // 1_000, " s"),
        (limits.IN_FLIGHT_MAX, " ("),
        (limits.DEDUP_WINDOW_MS // 1_000, " s"),
        (limits.TAGS_MAX, ","),
        (limits.REQUEST_BYTES_MAX // limits.MIB, " MiB"),
        (limits.FORM_BYTES_MAX // limits.MIB, " MiB"),
    ):
        assert f" {value:,}{unit}" in named[1], value


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_snippet_compiles(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL):
        compile(block, page.name, "exec")
