"""The time of a PostgreSQL notification by the number of sessions that listen on other channels.

Before version 19, a server wakes every listening session of a database for each notifying commit,
and each session checks the channel. So in a large pool every transfer of a slot costs time.
"""

from __future__ import annotations

import argparse
import json
import select
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from benchmarks.measuring import percentiles_ms
from benchmarks.support.postgres import EmbeddedPostgres


def measure(url: str, others: int, times: int) -> dict[str, Any]:
    """Milliseconds from a notification to its receipt, with ``others`` on other channels."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    sender, listener, *sessions = [engine.connect() for _ in range(2 + others)]
    for number, session in enumerate(sessions):
        session.exec_driver_sql(f"LISTEN other_{number}")
    listener.exec_driver_sql("LISTEN mine")
    driver: Any = listener.connection.driver_connection
    waited = []
    for _ in range(times):
        time.sleep(0.05)  # until the other sessions are idle
        began = time.perf_counter()
        sender.exec_driver_sql("NOTIFY mine")
        select.select([driver], [], [])
        driver.poll()
        waited.append(time.perf_counter() - began)
    for session in (*sessions, sender, listener):
        session.close()
    return {"listeners": others + 1, "ms": percentiles_ms(waited)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure with 1, 33, 65, 129 and 257 listeners, print rows, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--json", help="file for the figures")
    given = parser.parse_args(arguments)
    rows = []
    with EmbeddedPostgres(settings=("max_connections=400",)) as server:
        for others in (0, 32, 64, 128, 256):
            rows.append(measure(server.create_database(f"notices_{others}"), others, given.times))
            print(json.dumps(rows[-1]))
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"rows": rows}, file)


if __name__ == "__main__":
    main()
