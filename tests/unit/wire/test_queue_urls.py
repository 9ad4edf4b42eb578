import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.aws import queue_urls
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.queue_urls import QueueAddress

ACCOUNT = "123456789012"


@pytest.mark.parametrize(
    ("url", "account", "region", "name"),
    [
        (f"http://localhost:9324/{ACCOUNT}/orders", ACCOUNT, None, "orders"),
        (f"https://mq.example.com/{ACCOUNT}/orders/", ACCOUNT, None, "orders"),
        (f"http://[::1]:9324/{ACCOUNT}/orders.fifo", ACCOUNT, None, "orders.fifo"),
        (f"https://sqs.eu-west-1.amazonaws.com/{ACCOUNT}/q", ACCOUNT, "eu-west-1", "q"),
        (f"https://SQS.EU-WEST-1.amazonaws.com/{ACCOUNT}/q", ACCOUNT, "eu-west-1", "q"),
        (f"http://sqs.us-gov-west-1.x.y:1/{ACCOUNT}/q", ACCOUNT, "us-gov-west-1", "q"),
        (f"http://sqs.example.com/{ACCOUNT}/q", ACCOUNT, None, "q"),
        (f"http://us-west-2.queue.amazonaws.com/{ACCOUNT}/q", ACCOUNT, "us-west-2", "q"),
        (f"http://queue.amazonaws.com/{ACCOUNT}/q", ACCOUNT, None, "q"),
        (f"http://localhost/queue/us-east-2/{ACCOUNT}/q", ACCOUNT, "us-east-2", "q"),
        (f"http://sqs.eu-west-1.x/queue/local/{ACCOUNT}/q", ACCOUNT, "local", "q"),
        (f"/{ACCOUNT}/orders", ACCOUNT, None, "orders"),
        (f"/queue/us-east-2/{ACCOUNT}/q", ACCOUNT, "us-east-2", "q"),
        ("http://localhost:9324/queue/orders", None, None, "orders"),
        ("/queue/orders.fifo", None, None, "orders.fifo"),
        ("orders", None, None, "orders"),
        ("orders.fifo", None, None, "orders.fifo"),
    ],
)
def test_every_form_of_address_is_understood(
    url: str, account: str | None, region: str | None, name: str
) -> None:
    assert queue_urls.parse(url) == QueueAddress(account, region, name)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/",
        "http://",
        "http://localhost",
        "http://localhost/",
        "http://localhost/orders",
        "http://localhost/12345/orders",
        f"http://localhost/{ACCOUNT}",
        f"http://localhost/{ACCOUNT}/",
        f"http://localhost/{ACCOUNT}/a/b",
        f"http://localhost/{ACCOUNT}/orders?x=1",
        f"http://localhost/queue/../{ACCOUNT}/orders",
        f"localhost:9324/{ACCOUNT}/orders",
        f"arn:aws:sqs:us-east-1:{ACCOUNT}:orders",
        f"http://localhost/{ACCOUNT}/" + "x" * 2_000,
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(Fault) as caught:
        queue_urls.parse(url)
    assert (caught.value.code, caught.value.status) == ("InvalidAddress", 404)


@pytest.mark.parametrize(
    "url", [f"http://localhost/{ACCOUNT}/a b", f"http://h/{ACCOUNT}/%2e%2e", "a b", "x" * 81]
)
def test_a_name_no_queue_can_have_is_a_queue_that_does_not_exist(url: str) -> None:
    with pytest.raises(Fault) as caught:
        queue_urls.parse(url)
    assert caught.value.shape == "QueueDoesNotExist"


@pytest.mark.parametrize("base_url", ["http://localhost:9324", "https://mq.example.com/"])
def test_a_url_we_give_leads_back_to_the_queue(base_url: str) -> None:
    url = queue_urls.build(base_url, account=ACCOUNT, name="orders.fifo")
    assert url == f"{base_url.rstrip('/')}/{ACCOUNT}/orders.fifo"
    assert queue_urls.parse(url) == QueueAddress(ACCOUNT, None, "orders.fifo")


@pytest.mark.parametrize(
    ("arn", "address"),
    [
        (f"arn:aws:sqs:eu-west-1:{ACCOUNT}:q.fifo", QueueAddress(ACCOUNT, "eu-west-1", "q.fifo")),
        (f"arn:aws-cn:sqs:cn-north-1:{ACCOUNT}:q", QueueAddress(ACCOUNT, "cn-north-1", "q")),
        (f"arn:aws:sns:eu-west-1:{ACCOUNT}:q", None),
        (f"arn:aws:sqs:eu-west-1:{ACCOUNT}:q:g", QueueAddress(ACCOUNT, "eu-west-1", "q:g")),
        (f"arn:aws:sqs:eu-west-1:{ACCOUNT}:q:g:more", None),
        (f"arn:aws:sqs:eu-west-1:{ACCOUNT}:q:", None),
        ("arn:aws:sqs:eu-west-1:123:q", None),
        (f"arn:aws:sqs::{ACCOUNT}:q", None),
        (f"arn:aws:sqs:eu-west-1:{ACCOUNT}:", None),
        ("", None),
    ],
)
def test_arns_of_queues_are_read(arn: str, address: QueueAddress | None) -> None:
    assert queue_urls.parse_arn(arn) == address


@settings(max_examples=100)
@given(
    url=st.text(max_size=60)
    | st.builds(
        "http://{}/{}/{}".format, st.text(max_size=9), st.just(ACCOUNT), st.text(max_size=9)
    )
)
def test_arbitrary_text_gives_an_address_or_a_fault(url: str) -> None:
    queue_urls.parse_arn(url)
    try:
        status = 200 if queue_urls.parse(url).name else 0
    except Fault as refusal:
        status = refusal.status
    assert status in (200, 400, 404)
