"""``python -m benchmarks.slurm_cluster --seconds 300``; needs slurm-wlm, munge and root."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.slurm_cluster.cluster import missing
from benchmarks.slurm_cluster.run import run
from benchmarks.stretches import read_stretches, wrong


def main() -> int:
    """Run, and print one line of JSON; 1 where something was trained twice or lost."""
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
    line = json.dumps(asdict(run(folder, seconds=given.seconds, cancel_at=given.cancel_at)))
    print(line)
    if given.json:
        given.json.write_text(line + "\n")
    found = wrong(read_stretches(folder / "stretches"))
    for words in found:
        print(words, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
