"""The topics of this node as groups see them: by account and name, with an epoch that rises with
every change that matters to a group."""

from penstock.cursor.group.consumer import Topics
from penstock.cursor.group.matches import Matches
from penstock.model.names import is_internal
from penstock.model.tenancy import split_scoped
from penstock.model.topic import Topic

_NO_TOPICS = Topics(0, {})


class GroupTopics:
    def __init__(self, own_account: str, region: str) -> None:
        self._own_account = own_account
        self._region = region
        # By account: kept up to date in place, the epoch tells of a change.
        self._by_name: dict[str, dict[str, tuple[str, int]]] = {}
        self._topics: dict[str, Topics] = {}
        self._epoch = 0

    def of(self, group_id: str) -> Topics:
        account, _ = split_scoped(group_id, own_account=self._own_account)
        return self._topics.get(account, _NO_TOPICS)

    def id_of(self, group_id: str, name: str) -> str | None:
        entry = self.of(group_id).by_name.get(name)
        return None if entry is None else entry[0]

    def changed(self, before: Topic | None, after: Topic | None) -> None:
        """Shares and internal topics are nothing to subscribe to."""
        topic = after or before
        assert topic is not None
        if topic.is_share or topic.region != self._region or is_internal(topic.name):
            return
        by_name = self._by_name.setdefault(topic.account, {})
        if after is None:
            by_name.pop(topic.name, None)
        else:
            entry = (after.topic_id, after.partition_count)
            if by_name.get(after.name) == entry and not _is_policy_new(before, after):
                return
            by_name[after.name] = entry
        self._epoch += 1
        known = self._topics.get(topic.account)
        matches = Matches() if known is None else known.matches
        self._topics[topic.account] = Topics(self._epoch, by_name, matches)
        if not by_name:
            del self._by_name[topic.account], self._topics[topic.account]


def _is_policy_new(before: Topic | None, after: Topic) -> bool:
    """Return whether the topic's policy changed, so that other members may see the topic."""
    return before is not None and before.settings.policy != after.settings.policy
