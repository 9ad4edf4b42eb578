"""Configs that operators change while nodes run: of brokers, client metrics and client quotas.

Configs of brokers are stored for all brokers (the empty name) and for one broker (its number). A
node applies its own value, else the value for all brokers. Broker configs do not belong to a
tenant: they are stored in the account of the nodes. Topics that set no value get their defaults
from here (``defaults``).
"""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final, Self, cast

from penstock.metadata.store import Store
from penstock.metadata.topics.resource_configs import (
    BROKER,
    NO_CONFIGS,
    Configs,
    Resource,
    ResourceConfigs,
)
from penstock.model.levels import BROKER_CONFIGS_STORED, LEVEL_MAX
from penstock.model.names import ACCOUNT_DEFAULT
from penstock.model.stream import BUILT_IN, TopicDefaults, settings_of
from penstock.model.topic import Topic

ALL_BROKERS: Final = ""
_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


class DynamicConfigs:
    def __init__(
        self,
        configs: ResourceConfigs,
        *,
        account: str = ACCOUNT_DEFAULT,
        node: int = 1,
        level: Callable[[], int] = lambda: LEVEL_MAX,
        topic_names: Mapping[str, str] = _NO_NAMES,
    ) -> None:
        """``configs`` must not be started yet. ``level``: the feature level in force.
        ``topic_names``: the topic config for which a broker config is the default."""
        self.account = account
        self.stored = configs
        self.own: Configs = NO_CONFIGS  # set for this broker
        self.of_all: Configs = NO_CONFIGS  # set for all brokers
        self.defaults = TopicDefaults()  # of topics
        self._node = str(node)
        self._level = level
        self._topic_names = topic_names
        self._everywhere: Collection[TopicDefaults] = (BUILT_IN,)
        self._listeners: list[Callable[[], None]] = []
        configs.on_change(BROKER, self._brokers_changed)

    @classmethod
    def detached(cls) -> Self:
        """Return configs without a store: nothing is set, and changes fail."""
        return cls(ResourceConfigs(cast(Store, None)))

    @property
    def is_in_force(self) -> bool:
        """Whether every node of the cluster can read these configs (feature level 7)."""
        return self._level() >= BROKER_CONFIGS_STORED

    def of(self, kind: str, name: str) -> Configs:
        return self.stored.get(Resource(self.account, kind, name))

    async def change(self, kind: str, name: str, changes: Mapping[str, str | None]) -> None:
        """Change configs whose values have been checked. Raises as ``ResourceConfigs.change``."""
        await self.stored.change(Resource(self.account, kind, name), changes)

    # ── Brokers ──────────────────────────────────────────────────────────────────────────────

    def value(self, name: str) -> str | None:
        """Return the value that this node applies; None: not set, use the node's configuration."""
        value = self.own.get(name)
        return self.of_all.get(name) if value is None else value

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each change of a config that this node applies."""
        self._listeners.append(listener)

    def retention_ms_max(self, topic: Topic) -> int | None:
        """Return how long any node may keep records of a topic; None: forever."""
        longest_ms = 0
        for defaults in self._everywhere:
            retention_ms = settings_of(topic, defaults).retention_ms
            if retention_ms is None:
                return None
            longest_ms = max(longest_ms, retention_ms)
        return longest_ms

    def _brokers_changed(self, account: str, name: str, _configs: Configs) -> None:
        if account != self.account:
            return
        self.own, self.of_all = self.of(BROKER, self._node), self.of(BROKER, ALL_BROKERS)
        brokers = self.stored.names(account, BROKER)
        self._everywhere = [
            TopicDefaults(self._topic_configs(self.of(BROKER, broker)))
            for broker in {ALL_BROKERS, *brokers}
        ]
        if name not in (ALL_BROKERS, self._node):
            return
        after = self._topic_configs(self.own)
        if after != self.defaults.configs:
            self.defaults.replace(after)
        for listener in self._listeners:
            listener()

    def _topic_configs(self, own: Configs) -> Configs:
        """Return the topic defaults on a broker that has these configs set for itself."""
        names, merged = self._topic_names, {**self.of_all, **own}
        return {names[name]: text for name, text in merged.items() if name in names}
