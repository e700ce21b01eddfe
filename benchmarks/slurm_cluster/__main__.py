"""``python -m benchmarks.slurm_cluster --seconds 300``; needs slurm-wlm, munge and root."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.slurm_cluster.cluster import missing
from benchmarks.slurm_cluster.run import run
from benchmarks.stretches import conclude, read_stretches


def main() -> int:
    """Run and print one line of JSON; return 1 if steps were trained twice or lost."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.slurm_cluster", description=__doc__
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="to the deadline")
    parser.add_argument("--cancel-at", type=float, default=60.0)
    parser.add_argument("--json", type=Path, help="write the line to this file too")
    given = parser.parse_args()
    if (why_not := missing()) is not None:
        print(why_not, file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="optuna-deadline-slurm-run-"))
    figures = run(folder, seconds=given.seconds, cancel_at=given.cancel_at)
    return conclude(asdict(figures), read_stretches(folder / "stretches"), given.json)


if __name__ == "__main__":
    sys.exit(main())
