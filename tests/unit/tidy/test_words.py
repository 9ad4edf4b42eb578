"""Words that make readers guess stay out of the source and the documents.

Each has a plain replacement: name the thing, or use the word that users search for."""

import re

from tests.unit.tidy.test_documents import read, tracked

REPLACEMENTS = {
    "anew": "again, from the start",
    "anybody": "the noun, any client",
    "everybody": "the noun, all clients",
    "farewell": "stop, last message",
    "nobody": "no client, no node",
    "sought": "requested",
    "somebody": "the noun, a client",
    "told": "replied, reported, notified",
    "whoever": "the noun, any node that",
    "whom": "the noun",
    "wish": "request",
    "wishes": "requests",
}
WORD = re.compile(rf"(?<![A-Za-z])({'|'.join(REPLACEMENTS)})(?![A-Za-z])", re.IGNORECASE)
# Texts that are stored or sent.
ALLOWED = {
    "docs/adr/0032-low-watermark-is-a-file-of-each-replica.md": "Told",
    "docs/pipeline.md": "begun anew",
    "docs/replication.md": r"(?m)\|[^|]*\|$",  # names of faults in the simulator
    "docs/scaling.md": "who follows whom",
    "src/penstock/metadata/cluster_entries.py": "/wishes/",
    "src/penstock/metadata/serving/entry_rules.py": "WISHES|/wishes/",
    "src/penstock/pipeline/facts/audit_chain.py": "begun anew",
}
NAMES_OF_TESTS = re.compile(r"test_\w+")


def files() -> list[str]:
    prose = [name for name in tracked() if name.endswith(".md") and name != "CHANGELOG.md"]
    return prose + [name for name in tracked() if name.startswith("src/")]


def test_no_word_makes_the_reader_guess() -> None:
    found = []
    for name in files():
        text = NAMES_OF_TESTS.sub("", read(name))
        text = re.sub(ALLOWED[name], "", text) if name in ALLOWED else text
        for match in WORD.finditer(text):
            line, word = text.count("\n", 0, match.start()) + 1, match[0].lower()
            found.append(f"{name}:{line}: instead of {word!r} write {REPLACEMENTS[word]}")
    assert not found, "\n".join(found)
