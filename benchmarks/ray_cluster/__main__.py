"""``python -m benchmarks.ray_cluster --seconds 180 --json ray.json``; needs ``[ray]``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.ray_cluster.run import run
from benchmarks.stretches import read_stretches, wrong


def main() -> int:
    """Run, and print one line of JSON; 1 where something was trained twice or lost."""
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
    line = json.dumps(asdict(figures))
    print(line)
    if given.json:
        given.json.write_text(line + "\n")
    found = wrong(read_stretches(folder / "logs"))
    for words in found:
        print(words, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
