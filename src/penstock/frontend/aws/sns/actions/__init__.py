"""A table of the SNS actions by name."""

from collections.abc import Coroutine, Mapping
from typing import Any, Final

from penstock.frontend.aws.context import Action, Call, Run
from penstock.frontend.aws.sns.actions import (
    address_books,
    direct,
    publish,
    sms,
    subscriptions,
    tags,
    topics,
)
from penstock.model.levels import PUSH
from penstock.wire.aws.sns.faults import fault

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


def _at_level(run: Run) -> Run:
    """Return an action that is refused below the feature level of push. There is nothing to read
    then, and older nodes could not read what the action writes."""

    def checked(call: Call, request: Any) -> Coroutine[Any, Any, Any]:
        if call.context.level() < PUSH:
            text = f"SNS needs feature level {PUSH}: upgrade all nodes, then run"
            raise fault("ServiceUnavailable", f"{text} penstock cluster upgrade.")
        return run(call, request)

    return checked


ACTIONS: Final[Mapping[str, Action]] = {
    name: Action(name, _at_level(run), f"sns:{name.removesuffix('Batch')}")
    for name, run in _RUNS.items()
}
# Actions that links in messages to endpoints perform, without a signature.
LINKS: Final = frozenset(("ConfirmSubscription", "Unsubscribe"))
