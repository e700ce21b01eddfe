"""``python -m benchmarks.ray_cluster --seconds 180 --json ray.json``; needs ``[ray]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.ray_cluster.run import run
from benchmarks.stretches import conclude, read_stretches


def main() -> int:
    """Run and print one line of JSON; return 1 if steps were trained twice or lost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray_cluster", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0, help="to the deadline")
    parser.add_argument("--kill-at", type=float, default=60.0)
    parser.add_argument("--add-at", type=float, default=90.0)
    parser.add_argument("--ttl", type=float, default=30.0)
    parser.add_argument("--grace", type=float, default=15.0)
    parser.add_argument("--json", type=Path, help="write the line to this file too")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="optuna-deadline-ray-"))
    figures = run(
        folder, seconds=given.seconds, kill_at=given.kill_at, add_at=given.add_at,
        ttl=given.ttl, grace=given.grace,
    )  # fmt: skip
    return conclude(asdict(figures), read_stretches(folder / "logs"), given.json)


if __name__ == "__main__":
    sys.exit(main())
