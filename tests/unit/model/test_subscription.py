import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import limits
from penstock.model.errors import InvalidRequest
from penstock.model.subscription import (
    RANDOM_BYTES,
    Subscription,
    SubscriptionState,
    check_subscription,
    is_id,
    new_id,
    place_of_endpoint,
    place_of_id,
)
from penstock.model.topic import Kind, SnsTopic, Topic

TOPIC_ID = "ab" * 16
URL = "https://example.com/hook"
UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

texts = st.text(max_size=40)
randoms = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)


def make(endpoint: str = URL, **changes: object) -> Subscription:
    one = Subscription(
        id=new_id(TOPIC_ID, "https", endpoint, random=bytes(8)),
        topic_id=TOPIC_ID,
        source_arn="arn:aws:sns:us-east-1:111111111111:orders",
        account="111111111111",
        region="us-east-1",
        protocol="https",
        endpoint=endpoint,
        created_at_ms=1_000,
    )
    return msgspec.structs.replace(one, **changes)


@given(texts, texts, texts, randoms, randoms)
def test_an_id_says_where_its_entry_is_and_is_new_each_time(
    topic_id: str, protocol: str, endpoint: str, first: bytes, second: bytes
) -> None:
    one = new_id(topic_id, protocol, endpoint, random=first)
    assert UUID4.fullmatch(one)
    assert is_id(one)
    assert place_of_id(one) == place_of_endpoint(topic_id, protocol, endpoint)
    other = new_id(topic_id, protocol, endpoint, random=second)
    assert place_of_id(other) == place_of_id(one)
    # Two bits are those of a UUID.
    assert (one == other) == (int.from_bytes(first) % 2**62 == int.from_bytes(second) % 2**62)


@given(st.tuples(texts, texts, texts), st.tuples(texts, texts, texts))
def test_only_the_same_endpoint_has_the_same_place(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    if "\0" not in "".join((*one, *other)):
        assert (one == other) == (place_of_endpoint(*one) == place_of_endpoint(*other))


@pytest.mark.parametrize("text", ["", "x", "PendingConfirmation", make().id.upper(), make().id[1:]])
def test_other_texts_are_not_ids(text: str) -> None:
    assert not is_id(text)
    assert not is_id(make().id + "\n")


def test_the_place_of_an_endpoint_never_changes() -> None:
    """Stored entries would no longer be found."""
    assert place_of_endpoint(TOPIC_ID, "https", URL) == "43d79b476271415d"


def test_an_arn_is_that_of_the_topic_and_the_id() -> None:
    assert make().arn == f"arn:aws:sns:us-east-1:111111111111:orders:{make().id}"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"account": "1"}, "account or region"),
        ({"region": "US"}, "account or region"),
        ({"id": "x"}, "does not match its topic"),
        ({"endpoint": URL + "2"}, "does not match its topic"),
        ({"topic_id": "cd" * 16}, "does not match its topic"),
        ({"protocol": "http"}, "does not match its topic"),
        ({"base_url": "h" * 2_049}, "at most 2,048 characters"),
        ({"principal": "h" * 2_049}, "at most 2,048 characters"),
        ({"paused": "h" * 2_049}, "at most 2,048 characters"),
        ({"attributes": {str(n): "" for n in range(33)}}, "at most 32 attributes"),
        ({"attributes": {"FilterPolicy": "x" * limits.SUBSCRIPTION_BYTES_MAX}}, "393,216 bytes"),
        ({"webhook": '"' * 200_000}, "393,216 bytes"),
        ({"secrets": bytes(300_000)}, "393,216 bytes"),
        ({"attributes": {"FilterPolicy": "\ud800"}}, "not valid Unicode"),
        ({"base_url": "\ud800"}, "not valid Unicode"),
        ({"created_at_ms": -1}, "invalid time or offset"),
        ({"start_offsets": (1, -1)}, "invalid time or offset"),
        ({"start_offsets": (2**63,)}, "invalid time or offset"),
        ({"start_offsets": (0,) * 1_001}, "1,000 partitions"),
    ],
)
def test_a_subscription_that_others_could_not_use_is_refused(
    changes: dict[str, object], why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why):
        check_subscription(msgspec.structs.replace(make(), **changes))


def test_invalid_protocols_and_endpoints_are_refused() -> None:
    for protocol in ("", "HTTPS", "a b", "x" * 33):
        one = make(id=new_id(TOPIC_ID, protocol, URL, random=bytes(8)), protocol=protocol)
        with pytest.raises(InvalidRequest, match="invalid protocol"):
            check_subscription(one)
    check_subscription(make("x" * 2_048))
    with pytest.raises(InvalidRequest, match="at most 2,048"):
        check_subscription(make("x" * 2_049))
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        check_subscription(make("\udc80"))


def test_the_largest_subscription_fits_an_entry_of_the_store() -> None:
    control = "\x01" * limits.ENDPOINT_CHARS_MAX  # six bytes each as JSON
    one = make(control, **dict.fromkeys(("source_arn", "principal", "base_url", "paused"), control))
    one = msgspec.structs.replace(
        one,
        attributes={"FilterPolicy": "x" * (limits.SUBSCRIPTION_BYTES_MAX - 100)},
        start_offsets=(2**63 - 1,) * limits.SUBSCRIPTION_PARTITIONS_MAX,
    )
    check_subscription(one)
    assert len(msgspec.json.encode(one)) <= 512 * 1_024
    assert msgspec.json.decode(msgspec.json.encode(one), type=Subscription) == one


def test_a_row_without_later_fields_is_read() -> None:
    """As it is written for a new subscription: defaults are left out."""
    value = msgspec.json.encode(make())
    assert b"paused" not in value
    found = msgspec.json.decode(value, type=Subscription)
    assert found == make()
    assert found.state is SubscriptionState.PENDING


def test_rows_of_other_topics_are_as_before() -> None:
    topic = Topic("ab" * 16, "111111111111", "us-east-1", "t", Kind.STREAM, 1, 2, 3, b"key")
    assert msgspec.json.encode(topic) == (
        b'{"topic_id":"' + b"ab" * 16 + b'","account":"111111111111","region":"us-east-1",'
        b'"name":"t","kind":"stream","partition_count":1,"created_at_ms":2,"modified_at_ms":3,'
        b'"receipt_key":"a2V5"}'
    )
    assert topic.sns_arn is None
    named = msgspec.structs.replace(topic, sns=SnsTopic("orders", 5))
    assert named.sns_arn == "arn:aws:sns:us-east-1:111111111111:orders"
    assert msgspec.json.decode(msgspec.json.encode(named), type=Topic) == named
    assert named.arn == topic.arn
