"""The load generator, a process of its own: reads a job from its input, writes what it found.

python -m benchmarks.kafka.load < job.json > result.json
"""

import os
import sys

import msgspec

from benchmarks.kafka.drivers import bare, frames, nats, redis
from benchmarks.kafka.job import Driver, Job, Result
from benchmarks.kafka.pump import Pump

CONVERSATIONS = {
    Driver.BYTES: bare.conversations,
    Driver.FRAMES: frames.conversations,
    Driver.REDIS: redis.conversations,
    Driver.NATS: nats.conversations,
}


def run(job: Job) -> Result:
    if job.driver is Driver.LIBRDKAFKA:
        from benchmarks.kafka.drivers import librdkafka

        return librdkafka.run(job)
    return Pump(job, CONVERSATIONS[job.driver](job)).run()


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    if job.cores:
        os.sched_setaffinity(0, job.cores)
    sys.stdout.buffer.write(msgspec.json.encode(run(job)))


if __name__ == "__main__":
    main()
