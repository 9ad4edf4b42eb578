"""The settings that a session chooses."""

from __future__ import annotations

import pytest

from penstock.pipeline.session import session_conf


@pytest.mark.parametrize(
    ("master", "partitions", "host"),
    [
        ("local", "1", "127.0.0.1"),
        ("local[3]", "3", "127.0.0.1"),
        ("local[64,4]", "16", "127.0.0.1"),
        ("spark://127.0.0.1:7077", None, "127.0.0.1"),
        ("spark://master.example:7077", None, None),
        ("k8s://https://example:6443", None, None),
        ("yarn", None, None),
    ],
)
def test_what_is_chosen_follows_where_the_executors_are(
    master: str, partitions: str | None, host: str | None
) -> None:
    conf = session_conf("app", master=master, conf={})
    assert conf.get("spark.sql.shuffle.partitions") == partitions
    assert conf.get("spark.driver.host") == host


def test_what_the_user_says_wins() -> None:
    given = {"spark.driver.memory": "3g", "spark.ui.enabled": "true", "spark.x": "y"}
    conf = session_conf("app", master="local[2,4]", conf=given)
    assert given.items() <= conf.items()
