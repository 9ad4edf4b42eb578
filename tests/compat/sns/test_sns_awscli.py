"""SNS with the AWS command line: one process per command, JSON in and out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.compat.sns.stage import Stage

AWS = Path(sys.prefix) / "awscli" / "bin" / "aws"
Aws = Callable[..., Any]

pytestmark = [
    pytest.mark.skipif(not AWS.exists(), reason=f"no AWS command line at {AWS}"),
    pytest.mark.slow,
]


@pytest.fixture
def aws(stage: Stage, tmp_path: Path) -> Aws:
    """``aws("create-topic", "--name", "t")`` returns the decoded reply, None if it is empty."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_PAGER": "",
    }

    def run(*arguments: str, is_ok: bool = True) -> Any:
        done = subprocess.run(
            [str(AWS), "--endpoint-url", stage.url, "--output", "json", "sns", *arguments],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if not is_ok:
            assert done.returncode != 0, done.stdout
            return done.stderr
        assert done.returncode == 0, f"aws sns {' '.join(arguments)}\n{done.stderr}"
        return json.loads(done.stdout) if done.stdout.strip() else None

    return run


def test_a_topic_from_its_creation_to_a_message_in_a_queue(stage: Stage, aws: Aws) -> None:
    queue, url = stage.queue()
    name = stage.name()
    tags = ("--tags", "Key=team,Value=blue")
    arn = aws("create-topic", "--name", name, "--attributes", "DisplayName=d", *tags)["TopicArn"]
    policy = json.dumps({"RawMessageDelivery": "true", "FilterPolicy": '{"color":["red"]}'})
    endpoint = ("--notification-endpoint", queue)
    made = aws("subscribe", "--topic-arn", arn, "--protocol", "sqs", *endpoint,
               "--attributes", policy)["SubscriptionArn"]  # fmt: skip
    color = json.dumps({"color": {"DataType": "String", "StringValue": "red"}})
    aws("publish", "--topic-arn", arn, "--message", "plain")
    aws("publish", "--topic-arn", arn, "--message", "hot", "--message-attributes", color)
    assert [one["Body"] for one in stage.received(url)] == ["hot"]
    shown = aws("get-subscription-attributes", "--subscription-arn", made)["Attributes"]
    assert shown["FilterPolicy"] == '{"color":["red"]}'
    [tag] = aws("list-tags-for-resource", "--resource-arn", arn)["Tags"]
    assert tag == {"Key": "team", "Value": "blue"}
    [listed] = aws("list-subscriptions-by-topic", "--topic-arn", arn)["Subscriptions"]
    assert listed["SubscriptionArn"] == made
    aws("unsubscribe", "--subscription-arn", made)
    aws("delete-topic", "--topic-arn", arn)
    stderr = aws("get-topic-attributes", "--topic-arn", arn, is_ok=False)
    assert "(NotFound)" in stderr
    assert "Topic does not exist" in stderr
