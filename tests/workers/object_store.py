"""An S3 of the tests' own: moto's server in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tables import wait_until

from optuna_deadline.worker.devices import free_port

BUCKET = "models"


def environment(port: int) -> dict[str, str]:
    """What leads every process that inherits it to the store, with credentials of no use."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }


@contextmanager
def object_store() -> Iterator[int]:
    """Start it, with an empty bucket; its port."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: server.poll() is not None or _listens(port))
        before = dict(os.environ)
        os.environ.update(environment(port))
        try:
            import s3fs

            s3fs.S3FileSystem(skip_instance_cache=True).mkdir(BUCKET)
        finally:
            os.environ.clear()
            os.environ.update(before)
        yield port
    finally:
        server.kill()
        server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
