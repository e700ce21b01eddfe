"""``python -m benchmarks.chaos --seconds 60 --database postgresql --seed 1``."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.chaos.disk import enter
from benchmarks.chaos.run import FEWEST, run, say


def main() -> int:
    """Run and print one line of JSON; return 1 if a guarantee broke or too little happened."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults strike")
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--hosts", type=int, help="2, but 1 on SQLite")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--json", type=Path, help="write the line to this file too")
    parser.add_argument("--keep", action="store_true", help="keep logs of a good run too")
    given = parser.parse_args()
    folder = enter("benchmarks.chaos", sys.argv[1:])
    verdict = run(given.seconds, given.database, given.seed, folder, given.hosts)
    line = json.dumps(asdict(verdict))
    print(line)
    if verdict.inconclusive:
        say(
            f"Inconclusive: {verdict.tenures} times a slot was taken, and {verdict.faults} faults "
            f"struck, of at least {FEWEST} each. See why workers do not train, or run it longer."
        )
    if given.json:
        given.json.write_text(line + "\n")
    if verdict.good and not given.keep:
        shutil.rmtree(folder, ignore_errors=True)  # but for its disk
    else:
        say(f"Logs, checkpoints and what the ranks wrote are in {folder}.")
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
