"""A table of the SNS actions by name."""

from collections.abc import Mapping
from typing import Final

from penstock.frontend.aws.context import Action, Run
from penstock.frontend.aws.sns.actions import (
    address_books,
    direct,
    publish,
    sms,
    subscriptions,
    tags,
    topics,
)

_RUNS: Final[Mapping[str, Run]] = {
    "AddPermission": topics.add_permission,
    "CheckIfPhoneNumberIsOptedOut": sms.is_opted_out,
    "ConfirmSubscription": subscriptions.confirm_subscription,
    "CreatePlatformApplication": address_books.create_application,
    "CreatePlatformEndpoint": address_books.create_endpoint,
    "CreateSMSSandboxPhoneNumber": sms.create_number,
    "CreateTopic": topics.create_topic,
    "DeleteEndpoint": address_books.delete_endpoint,
    "DeletePlatformApplication": address_books.delete_application,
    "DeleteSMSSandboxPhoneNumber": sms.delete_number,
    "DeleteTopic": topics.delete_topic,
    "GetDataProtectionPolicy": topics.get_data_protection,
    "GetEndpointAttributes": address_books.get_endpoint_attributes,
    "GetPlatformApplicationAttributes": address_books.get_application_attributes,
    "GetSMSAttributes": sms.get_attributes,
    "GetSMSSandboxAccountStatus": sms.sandbox_status,
    "GetSubscriptionAttributes": subscriptions.get_attributes,
    "GetTopicAttributes": topics.get_topic_attributes,
    "ListEndpointsByPlatformApplication": address_books.list_endpoints,
    "ListOriginationNumbers": sms.list_origination_numbers,
    "ListPhoneNumbersOptedOut": sms.list_opted_out,
    "ListPlatformApplications": address_books.list_applications,
    "ListSMSSandboxPhoneNumbers": sms.list_numbers,
    "ListSubscriptions": subscriptions.list_subscriptions,
    "ListSubscriptionsByTopic": subscriptions.list_of_topic,
    "ListTagsForResource": tags.list_tags,
    "ListTopics": topics.list_topics,
    "OptInPhoneNumber": sms.opt_in,
    "Publish": direct.publish,
    "PublishBatch": publish.publish_batch,
    "PutDataProtectionPolicy": topics.put_data_protection,
    "RemovePermission": topics.remove_permission,
    "SetEndpointAttributes": address_books.set_endpoint_attributes,
    "SetPlatformApplicationAttributes": address_books.set_application_attributes,
    "SetSMSAttributes": sms.set_attributes,
    "SetSubscriptionAttributes": subscriptions.set_attributes,
    "SetTopicAttributes": topics.set_topic_attributes,
    "Subscribe": subscriptions.subscribe,
    "TagResource": tags.tag_resource,
    "Unsubscribe": subscriptions.unsubscribe,
    "UntagResource": tags.untag_resource,
    "VerifySMSSandboxPhoneNumber": sms.verify_number,
}
ACTIONS: Final[Mapping[str, Action]] = {
    name: Action(name, run, f"sns:{name.removesuffix('Batch')}") for name, run in _RUNS.items()
}
# Actions that links in messages to endpoints perform, without a signature.
LINKS: Final = frozenset(("ConfirmSubscription", "Unsubscribe"))
