"""All questions, in the order in which both systems are asked."""

from collections.abc import Iterator

from benchmarks.answers import clients, configs, groups, topics
from benchmarks.answers.access import access_questions
from benchmarks.answers.question import Question


def questions(nodes: int, *, is_auth_on: bool) -> Iterator[Question]:
    if is_auth_on:
        yield from access_questions()
        return
    yield from topics.features()
    yield from topics.new_topics(nodes)
    yield from topics.new_partitions(nodes)
    yield from topics.records()
    yield from clients.lookups()
    yield from clients.fetches()
    yield from topics.moves(nodes)
    yield from configs.configs(nodes)
    yield from configs.quotas()
    yield from groups.groups()
    yield from groups.offsets_topic()
    yield from groups.streams_groups()
    yield from groups.patterns()
    yield from clients.clients()
    yield from configs.users()
    yield from topics.ends()
