"""LocalStack's SQS in host mode: the Python runtime without its container, one service loaded."""

from pathlib import Path

from benchmarks.server import Server, free_port
from benchmarks.systems import venv


class LocalStack:
    name = "localstack"
    is_queue = True
    warm_up_s = 8.0

    def prepare(self) -> None:
        venv.prepare(self.name)

    def start(self, *, folder: Path, cores: set[int]) -> Server:
        port = free_port()
        env = {
            "SERVICES": "sqs",
            "EAGER_SERVICE_LOADING": "1",
            "GATEWAY_LISTEN": f"127.0.0.1:{port}",
            # Also in a container it shall write nowhere but here.
            "OVERRIDE_IN_DOCKER": "0",
            "FILESYSTEM_ROOT": str(folder),
            "DISABLE_EVENTS": "1",
            "SKIP_SSL_CERT_DOWNLOAD": "1",
            "DNS_ADDRESS": "0",
            "LS_LOG": "error",  # at its default it logs every request
        }
        command = [str(venv.python_of(self.name)), "-m", "localstack.runtime.main"]
        server = Server(command, env=env, cores=cores, folder=folder)
        server.wait_for_answer(port, "/_localstack/health")
        return server
