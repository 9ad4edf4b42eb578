"""The options of ``mode=consume``."""

from __future__ import annotations

import pytest

from penstock.pipeline.client.option_values import OptionInvalid
from penstock.pipeline.reading.consume import parse_consume_options


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"queue": "q"}, "option endpoint must be the URL"),
        ({"endpoint": "http://a:1"}, "option queue is missing"),
        ({"endpoint": "http://a:1", "queue": "q", "leaseSeconds": "5"}, ">= 10"),
        ({"endpoint": "http://a:1", "queue": "q", "accessKeyId": "k"}, "needs secretKeyFile"),
        ({"endpoint": "http://a:1", "queue": "q", "colums": "k"}, "unknown option colums"),
    ],
)
def test_a_bad_option_is_refused_with_one_line(options: dict[str, str], why: str) -> None:
    with pytest.raises(OptionInvalid, match=why):
        parse_consume_options({"mode": "consume", **options})
