"""A table of the SNS actions by name."""

from collections.abc import Mapping
from typing import Final

from penstock.frontend.aws.context import Action, Run
from penstock.frontend.aws.sns.actions import publish, subscriptions, tags, topics

_RUNS: Final[Mapping[str, Run]] = {
    "AddPermission": topics.add_permission,
    "ConfirmSubscription": subscriptions.confirm_subscription,
    "CreateTopic": topics.create_topic,
    "DeleteTopic": topics.delete_topic,
    "GetDataProtectionPolicy": topics.get_data_protection,
    "GetSubscriptionAttributes": subscriptions.get_attributes,
    "GetTopicAttributes": topics.get_topic_attributes,
    "ListSubscriptions": subscriptions.list_subscriptions,
    "ListSubscriptionsByTopic": subscriptions.list_of_topic,
    "ListTagsForResource": tags.list_tags,
    "ListTopics": topics.list_topics,
    "Publish": publish.publish,
    "PublishBatch": publish.publish_batch,
    "PutDataProtectionPolicy": topics.put_data_protection,
    "RemovePermission": topics.remove_permission,
    "SetSubscriptionAttributes": subscriptions.set_attributes,
    "SetTopicAttributes": topics.set_topic_attributes,
    "Subscribe": subscriptions.subscribe,
    "TagResource": tags.tag_resource,
    "Unsubscribe": subscriptions.unsubscribe,
    "UntagResource": tags.untag_resource,
}
ACTIONS: Final[Mapping[str, Action]] = {
    name: Action(name, run, f"sns:{name.removesuffix('Batch')}") for name, run in _RUNS.items()
}
# Actions that links in messages to endpoints perform, without a signature.
LINKS: Final = frozenset(("ConfirmSubscription", "Unsubscribe"))
