"""The commands ``penstock examples``, which prints recipes to copy, and ``penstock completion``,
which prints the tab completion script of a shell. A test runs the shell and Python recipes."""

from typing import NamedTuple

import click

from penstock.cli.terminal.failure import NotFound

_WHERE = {
    "bash": 'add to ~/.bashrc:  eval "$(penstock completion bash)"',
    "zsh": 'add to ~/.zshrc:  eval "$(penstock completion zsh)"',
    "fish": "run once:  penstock completion fish > ~/.config/fish/completions/penstock.fish",
}


class Recipe(NamedTuple):
    title: str
    text: str


RECIPES = {
    "boto3": Recipe(
        "Python with boto3",
        """\
import boto3

sqs = boto3.client(
    "sqs",
    endpoint_url="http://127.0.0.1:9324",
    region_name="us-east-1",
    aws_access_key_id="penstock",
    aws_secret_access_key="penstock",
)
url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
sqs.send_message(QueueUrl=url, MessageBody="hello")
for message in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5).get("Messages", []):
    print(message["Body"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
""",
    ),
    "aws": Recipe(
        "The aws command line",
        """\
export AWS_ACCESS_KEY_ID=penstock AWS_SECRET_ACCESS_KEY=penstock AWS_REGION=us-east-1
export AWS_ENDPOINT_URL_SQS=http://127.0.0.1:9324
aws sqs create-queue --queue-name jobs
aws sqs send-message --queue-url "$(aws sqs get-queue-url --queue-name jobs \\
  --query QueueUrl --output text)" --message-body hello
""",
    ),
    "celery": Recipe(
        "Celery: is_secure must be False, because the endpoint uses http",
        """\
from celery import Celery

app = Celery("jobs", broker="sqs://penstock:penstock@127.0.0.1:9324")
app.conf.update(
    broker_transport_options={
        "region": "us-east-1",
        "is_secure": False,
        "wait_time_seconds": 10,
        # Celery sleeps this long after each receive. With the default of 1 s a worker process
        # takes five tasks a second. The long poll above keeps an idle worker quiet.
        "polling_interval": 0.05,
        "visibility_timeout": 3600,
    },
    task_acks_late=True,
    worker_enable_remote_control=False,
)
""",
    ),
    "fifo": Recipe(
        "Order within a group: the second message of a group waits for the first",
        """\
penstock queue create orders --fifo --content-dedup
penstock message send orders.fifo --group customer-7 'created'
penstock message send orders.fifo --group customer-7 'paid'
penstock message receive orders.fifo --count 2 --delete
""",
    ),
    "dlq": Recipe(
        "Dead letters: move messages aside after three failed receives, redrive them later",
        """\
penstock queue create jobs-dead
penstock queue create jobs --dead-letter jobs-dead --max-receives 3
penstock dlq list
penstock message peek jobs-dead
penstock dlq redrive jobs-dead --dry-run
penstock dlq redrive jobs-dead --rate 50
""",
    ),
    "batch": Recipe(
        "Many messages through pipes: one message per line, or NDJSON with attributes",
        """\
penstock queue create jobs
seq 1000 | penstock message send jobs -
echo '{"body": "hello", "attributes": {"lang": "en"}, "delay": 5}' \\
  | penstock message send jobs --ndjson -
penstock message receive jobs --count 1000 --delete > backup.ndjson
penstock message send jobs --ndjson -f backup.ndjson
""",
    ),
    "kafka": Recipe(
        "A topic from the command line: keys, headers, tail, and offsets of a group",
        """\
penstock topic create clicks --partitions 4
penstock message send --topic clicks --key ann --header page=1 'opened'
seq 1000 | penstock message send --topic clicks -
echo '{"key": "bob", "headers": {"page": "2"}, "value": "closed", "partition": 3}' \\
  | penstock message send --topic clicks --ndjson -
penstock message tail --topic clicks --from earliest --no-follow --grep ed
penstock message tail --topic clicks --group audit --count 10
penstock group lag audit
penstock group reset audit --to begin
""",
    ),
    "two-views": Recipe(
        "One message for Kafka and SQS clients: a topic that is opened as a queue",
        """\
penstock topic create jobs-log --config retention.ms=86400000
penstock message send --topic jobs-log 'resize image 17'
penstock topic open-as-queue jobs-log
penstock message receive jobs-log --delete
penstock message tail --topic jobs-log --from earliest --no-follow
""",
    ),
    "copy": Recipe(
        "Copy a topic: send reads the output of tail and keeps the partitions",
        """\
penstock topic create clicks --partitions 4
penstock topic create clicks-copy --partitions 4
penstock message tail --topic clicks --from earliest --no-follow \\
  | penstock message send --topic clicks-copy --ndjson -
penstock topic list clicks
""",
    ),
    "backup": Recipe(
        "Back up a running server, verify the backup, and restore it into a new data folder",
        """\
penstock backup create --to backups --rate 50MB
penstock backup verify backups
newest="$(penstock backup list backups -o name | tail -n 1)"
penstock backup restore "backups/$newest" --data restored
""",
    ),
    "ci": Recipe(
        "Tests in CI without containers: use a free port and wait for the line `ready`",
        """\
penstock serve --data "$(mktemp -d)" --http 127.0.0.1:0 --fsync never > server.log &
server=$!
until grep -q '^ready' server.log; do sleep 0.1; done
export PENSTOCK_ENDPOINT="$(sed -n 's/^ready.*http=\\([^ ]*\\).*/\\1/p' server.log)"
export AWS_ENDPOINT_URL_SQS="$PENSTOCK_ENDPOINT"
penstock queue create jobs
# ... your tests ...
kill "$server"
""",
    ),
}


@click.command()
@click.argument("topic", required=False)
def examples(topic: str | None) -> None:
    """Print the examples of TOPIC, to copy and paste; without TOPIC, list the topics."""
    if topic is None:
        click.echo("penstock examples TOPIC\n")
        width = max(map(len, RECIPES))
        for name, recipe in RECIPES.items():
            click.echo(f"  {name.ljust(width)}  {recipe.title}")
        return
    found = RECIPES.get(topic)
    if found is None:
        raise NotFound(
            f"example '{topic}' does not exist",
            f"known examples: {', '.join(RECIPES)}",
            "list examples with `penstock examples`",
        )
    click.echo(f"# {found.title}\n{found.text}", nl=False)


@click.command(epilog="\b\n" + "\n".join(_WHERE.values()))
@click.argument("shell", type=click.Choice(list(_WHERE)))
def completion(shell: str) -> None:
    """Print the tab completion script for a shell."""
    from click.shell_completion import get_completion_class

    from penstock.cli.main import root

    kind = get_completion_class(shell)
    assert kind is not None, f"click knows {shell}"
    click.echo(kind(root, {}, "penstock", "_PENSTOCK_COMPLETE").source())
