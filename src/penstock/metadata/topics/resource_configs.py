"""Configs of named resources (groups, brokers, client metrics) and client quotas, in the metadata
store and in the memory of every node.

    /configs/{account}/{kind}/{name}    a JSON object whose values are strings; never empty

The name is percent-encoded, so any text is a valid name; the empty name is for the default of all
resources of a kind. A change is a compare-and-swap of one entry. The node that makes a change sees
it when the call returns; other nodes see it when the watch reports it.

A new kind in ``KINDS`` needs a new feature level (``model/levels.py``), because the metadata
service and other nodes reject kinds that they do not know."""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from penstock.metadata.cache import Cache, WatchGroup, put_in
from penstock.metadata.store import KEY_BYTES_MAX, Store
from penstock.model.errors import InvalidRequest, QuotaExceeded
from penstock.model.levels import BROKER_CONFIGS_STORED, LEVEL_MAX
from penstock.model.limits import RESOURCE_CONFIGS_BYTES_MAX, RESOURCE_CONFIGS_MAX
from penstock.model.names import ACCOUNT_DEFAULT, is_account
from penstock.model.stream import BUILT_IN, TopicDefaults, settings_of
from penstock.model.topic import Topic

CONFIGS_PREFIX: Final = "/configs/"
GROUP: Final = "group"
BROKER: Final = "broker"  # since feature level 7, like the next two
CLIENT_METRICS: Final = "client-metrics"
CLIENT_QUOTA: Final = "client-quota"
KINDS: Final = frozenset((GROUP, BROKER, CLIENT_METRICS, CLIENT_QUOTA))

Configs = Mapping[str, str]
Listener = Callable[[str, str, Configs], None]  # account, name, configs after the change

NO_CONFIGS: Final[Configs] = MappingProxyType({})
_decode = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder(order="sorted").encode


class Resource(NamedTuple):
    account: str
    kind: str
    name: str


def config_key(resource: Resource) -> str:
    account, kind, name = resource
    key = f"{CONFIGS_PREFIX}{account}/{kind}/{quote(name, safe='')}"
    if len(key) > KEY_BYTES_MAX:
        raise InvalidRequest(
            f"The name of this {kind} is too long: its metadata key, which contains the name"
            f" percent-encoded, can have at most {KEY_BYTES_MAX} bytes, not {len(key)}."
        )
    return key


def resource_of(key: str) -> Resource:
    account, _, rest = key.removeprefix(CONFIGS_PREFIX).partition("/")
    kind, mark, quoted = rest.partition("/")
    if not mark or not is_account(account) or kind not in KINDS:
        raise InvalidRequest(f"{key} is not the key of a resource's configs.")
    return Resource(account, kind, unquote(quoted))


def decode_configs(value: bytes) -> Configs:
    if len(value) > RESOURCE_CONFIGS_BYTES_MAX:
        raise ValueError(f"the configs are longer than {RESOURCE_CONFIGS_BYTES_MAX} bytes")
    configs = _decode(value)
    if not configs:
        raise ValueError("the configs are empty")
    return configs


def _encode_configs(configs: Configs) -> bytes:
    value = _encode(configs)
    if len(value) > RESOURCE_CONFIGS_BYTES_MAX:
        raise InvalidRequest(
            f"The configs of one resource must have at most {RESOURCE_CONFIGS_BYTES_MAX:,} bytes,"
            f" not {len(value):,}."
        )
    return value


class ResourceConfigs(WatchGroup):
    def __init__(self, store: Store) -> None:
        self._cache = Cache(
            store,
            CONFIGS_PREFIX,
            decode=decode_configs,
            encode=_encode_configs,
            on_change=self._on_entry_change,
        )
        super().__init__(self._cache)
        self._by_kind: dict[tuple[str, str], dict[str, Configs]] = {}  # and account
        self._listeners: dict[str, list[Listener]] = {}  # by kind

    def get(self, resource: Resource) -> Configs:
        """Return the configs of a resource, even if the resource does not exist."""
        if not self._cache:
            return NO_CONFIGS
        try:
            return self._cache.get(config_key(resource)) or NO_CONFIGS
        except InvalidRequest:
            return NO_CONFIGS  # the name is too long: nothing can be set for it

    def names(self, account: str, kind: str) -> Collection[str]:
        return self._by_kind.get((account, kind), ())

    def accounts(self, kind: str) -> Collection[str]:
        return [account for account, one in self._by_kind if one == kind]

    def on_change(self, kind: str, listener: Listener) -> None:
        """Call ``listener`` after any node has changed the configs of a resource of this kind."""
        self._listeners.setdefault(kind, []).append(listener)

    async def change(self, resource: Resource, changes: Mapping[str, str | None]) -> None:
        """Set configs of a resource. The value None removes a config."""
        await self._update(resource, lambda before: {**before, **changes})

    async def add_missing(self, resource: Resource, configs: Configs) -> None:
        """Set only the configs that have no value yet."""
        await self._update(resource, lambda before: {**configs, **before})

    async def _update(
        self, resource: Resource, merge: Callable[[Configs], Mapping[str, str | None]]
    ) -> None:
        def step(before: Configs | None) -> Configs | None:
            merged = merge(before or NO_CONFIGS)
            after = {name: text for name, text in merged.items() if text is not None}
            # Counted in memory: nodes that add at the same time may exceed the limit.
            if after and before is None and len(self._cache) >= RESOURCE_CONFIGS_MAX:
                raise QuotaExceeded(
                    f"{RESOURCE_CONFIGS_MAX:,} of {RESOURCE_CONFIGS_MAX:,} resources have configs;"
                    f" delete some configs before adding any for {resource.kind} {resource.name}."
                )
            return after or None

        await self._cache.update(
            config_key(resource), step, what=f"{resource.kind} {resource.name}"
        )

    def _on_entry_change(self, key: str, _before: Configs | None, after: Configs | None) -> None:
        account, kind, name = resource_of(key)
        put_in(self._by_kind, (account, kind), name, after)
        for listener in self._listeners.get(kind, ()):
            listener(account, name, after or NO_CONFIGS)


ALL_BROKERS: Final = ""
_NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


class DynamicConfigs:
    """Configs of brokers, client metrics and client quotas, which can be changed while nodes run.

    Broker configs are stored for all brokers (with an empty name) and for single brokers (with the
    broker's number as name). A node applies its own value, or else the value for all brokers.
    ``defaults`` contains the values that apply to topics that do not set a config themselves."""

    def __init__(
        self,
        configs: ResourceConfigs,
        *,
        account: str = ACCOUNT_DEFAULT,
        node: int = 1,
        level: Callable[[], int] = lambda: LEVEL_MAX,
        topic_names: Mapping[str, str] = _NO_NAMES,
    ) -> None:
        # ``configs`` must not be started yet. ``level`` returns the feature level in force.
        # ``topic_names`` maps a broker config to the topic config of which it is the default.
        self.account = account
        self.stored = configs
        self.own: Configs = NO_CONFIGS  # set for this broker
        self.of_all: Configs = NO_CONFIGS  # set for all brokers
        self.defaults = TopicDefaults()
        self._node = str(node)
        self._level = level
        self._topic_names = topic_names
        self._everywhere: Collection[TopicDefaults] = (BUILT_IN,)
        self._listeners: list[Callable[[], None]] = []
        configs.on_change(BROKER, self._brokers_changed)

    @property
    def is_in_force(self) -> bool:
        """Whether every node of the cluster can read these configs (feature level 7)."""
        return self._level() >= BROKER_CONFIGS_STORED

    def of(self, kind: str, name: str) -> Configs:
        return self.stored.get(Resource(self.account, kind, name))

    async def change(self, kind: str, name: str, changes: Mapping[str, str | None]) -> None:
        """Set configs; the value None removes a config. The caller must check the values."""
        await self.stored.change(Resource(self.account, kind, name), changes)

    def value(self, name: str) -> str | None:
        """Return the stored value of a broker config that applies to this node, or None."""
        value = self.own.get(name)
        return self.of_all.get(name) if value is None else value

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each change of a broker config that applies to this node."""
        self._listeners.append(listener)

    def retention_ms_max(self, topic: Topic) -> int | None:
        """Return a topic's retention on the node where it is longest, or None if unlimited."""
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
        """Return the default topic configs of a broker whose own configs are ``own``."""
        names, merged = self._topic_names, {**self.of_all, **own}
        return {names[name]: text for name, text in merged.items() if name in names}
