"""The SNS topics of the catalog by their names, which are independent of the names of streams.

The entry of a stream contains its SNS name. Two streams may claim the same name, if two nodes turn
existing streams into SNS topics at the same moment. Then the name belongs to the stream that has
claimed it first, on every node; the other stream is not an SNS topic until the name is free."""

from bisect import bisect_left, insort
from collections.abc import Sequence

from penstock.metadata.cache import put_in
from penstock.model.topic import Topic


class SnsNames:
    def __init__(self) -> None:
        self._claims: dict[tuple[str, str, str], dict[str, Topic]] = {}  # by name and topic id
        self._names: dict[tuple[str, str], list[str]] = {}  # sorted, by namespace

    def find(self, account: str, region: str, name: str) -> Topic | None:
        claims = self._claims.get((account, region, name))
        return None if claims is None else min(claims.values(), key=_claim_order)

    def topics(
        self, account: str, region: str, *, start: int = 0, count: int | None = None
    ) -> Sequence[Topic]:
        names = self._names.get((account, region), [])
        some = names[start:] if count is None else names[start : start + count]
        found = (self.find(account, region, name) for name in some)
        return [topic for topic in found if topic is not None]

    def add(self, topic: Topic) -> None:
        if topic.sns is None:
            return
        namespace, name = (topic.account, topic.region), topic.sns.name
        if (*namespace, name) not in self._claims:
            insort(self._names.setdefault(namespace, []), name)
        put_in(self._claims, (*namespace, name), topic.topic_id, topic)

    def remove(self, topic: Topic) -> None:
        if topic.sns is None:
            return
        namespace, name = (topic.account, topic.region), topic.sns.name
        put_in(self._claims, (*namespace, name), topic.topic_id, None)
        if (*namespace, name) in self._claims:
            return
        names = self._names[namespace]
        del names[bisect_left(names, name)]
        if not names:
            del self._names[namespace]


def _claim_order(topic: Topic) -> tuple[int, str]:
    assert topic.sns is not None
    return topic.sns.created_at_ms, topic.topic_id
