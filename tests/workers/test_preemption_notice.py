"""A host that is taken back says so ahead: its trials save and leave in time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import objectives
import optuna
import pytest
from tables import table_of, wait_until

from optuna_deadline.elastic import ElasticWorker, agree
from optuna_deadline.errors import DeadlineError
from optuna_deadline.options import WorkerOptions
from optuna_deadline.study.terms import Given
from optuna_deadline.worker.preemption import PreemptionWatcher, read_notice, seconds_left
from optuna_deadline.worker.time_limit import WorkerTimeLimit

NOW = 1_800_000_000.0


class Cloud(BaseHTTPRequestHandler):
    """What clouds answer under a machine's own address."""

    server: CloudServer

    def do_GET(self) -> None:
        """As EC2, which wants a token, and GCE, which wants its header."""
        if self.path.endswith("spot/instance-action"):
            if self.headers.get("X-aws-ec2-metadata-token") != "let me in":
                return self._say(401, "")
            return self._say(200 if self.server.taken else 404, self.server.taken)
        if self.headers.get("Metadata-Flavor") != "Google":
            return self._say(403, "")
        return self._say(200, "TRUE" if self.server.taken else "FALSE")

    def do_PUT(self) -> None:
        """A token is asked for with the time that it is to last."""
        assert self.path == "/latest/api/token"
        assert self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self._say(200, "let me in")

    def _say(self, code: int, words: str) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(words.encode())

    def log_message(self, *args: object) -> None:
        """Quietly."""


class CloudServer(ThreadingHTTPServer):
    """It runs on a thread of its own."""

    taken = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def cloud() -> Iterator[CloudServer]:
    with CloudServer(("127.0.0.1", 0), Cloud) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def test_clouds_are_understood(cloud: CloudServer) -> None:
    ec2 = f"{cloud.url}/latest/meta-data/spot/instance-action"
    google = f"{cloud.url}/computeMetadata/v1/instance/preempted"
    assert read_notice(ec2) is None and read_notice(google) is None
    cloud.taken = '{"action": "terminate", "time": "2027-01-15T08:02:00Z"}'
    assert seconds_left(read_notice(ec2) or "", NOW) == 120.0
    assert read_notice(google) == "TRUE" and seconds_left("TRUE", NOW) == 0.0
    assert read_notice("http://127.0.0.1:9/nobody") is None


def test_a_command_says_it_by_succeeding(tmp_path: Path) -> None:
    flag = tmp_path / "taken"
    assert read_notice(f"cat {flag}") is None
    flag.write_text("30s\n")
    assert read_notice(f"cat {flag}") == "30s"
    with pytest.raises(DeadlineError, match=r"'no-such-program' cannot be run .*a URL"):
        read_notice("no-such-program")


@pytest.mark.parametrize(
    ("words", "left"),
    [("90s", 90.0), ("2027-01-15T08:01:00+00:00", 60.0), ("45", 45.0), ("", 0.0), ("soon", 0.0),
     ('{"time": "2020-01-01T00:00:00Z"}', 0.0), ("true", 0.0)],
)  # fmt: skip
def test_what_is_left_is_read_where_it_is_said(words: str, left: float) -> None:
    assert seconds_left(words, NOW) == left


def test_a_notice_brings_the_end_forward_once(tmp_path: Path) -> None:
    flag, woken, until = tmp_path / "taken", [0], WorkerTimeLimit()

    def wake() -> None:
        woken[0] += 1

    notice = PreemptionWatcher(f"cat {flag}", until, wake)
    notice.poll()
    assert until.ends_at == math.inf and woken == [0]
    flag.write_text("60s")
    for _ in range(3):
        notice.poll()
    assert woken == [1] and 50 < until.ends_at - time.monotonic() <= 60


def test_a_command_that_is_missing_for_a_moment_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As while its package is updated; at the start of a worker it is a mistake."""
    program, until = tmp_path / "notice", WorkerTimeLimit()
    notice = PreemptionWatcher(str(program), until, lambda: None)
    with pytest.raises(DeadlineError, match="cannot be run"):
        notice.poll()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    notice.poll()
    program.rename(tmp_path / "updated")
    for _ in range(3):
        notice.poll()
    (tmp_path / "updated").rename(program)
    program.write_text("#!/bin/sh\necho 60\n")
    notice.poll()
    assert 50 < until.ends_at - time.monotonic() <= 60
    missing, again, taken = (record.getMessage() for record in caplog.records)
    assert "cannot be run" in missing and "tried again each 2 s" in missing
    assert again == "--preemption-notice can be run again." and "is preempted in" in taken


@pytest.mark.slow
def test_its_trials_leave_in_time_and_lose_no_step(
    sqlite_study: optuna.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK_LOG", str(tmp_path / "ranks"))
    terms = agree(sqlite_study, "100s", Given("fifo"))
    flag, table = tmp_path / "taken", table_of(sqlite_study)
    worker = ElasticWorker(
        sqlite_study,
        objectives.slow,
        terms,
        WorkerOptions(cpus=1, checkpoints=tmp_path, preemption_notice=f"cat {flag}"),
    )
    began: list[float] = []

    def take_back() -> None:
        wait_until(lambda: len(table.reports()) > 5)
        flag.write_text("12s")
        began.append(time.monotonic())

    taker = threading.Thread(target=take_back)
    taker.start()
    result = worker.run()
    taker.join()
    assert not result.settled and worker.reached_time_limit
    assert time.monotonic() - began[0] < 12 + 2
    [line] = table.trials()
    last = max(row.step for row in table.reports())
    assert (line.state, line.owner) == ("paused", None)
    assert table.checkpoints(line.number)[0].step == last, "no step is lost"
