"""Looking at a study's table, and the program of a worker."""

from __future__ import annotations

from pathlib import Path

import optuna

from optuna_deadline.allocation.engine import open_table
from optuna_deadline.allocation.table import AllocationTable

HERE = Path(__file__).parent
WORKER = """
import logging, sys
import optuna, optuna_deadline
from optuna_deadline.cli.app import in_one_sentence, set_up_logging
from optuna_deadline.elastic import ElasticWorker, agree
set_up_logging()
url, objective, cpus, ttl, grace, folder, *place = sys.argv[1:]
name, pool = place or ("study", "study")
with in_one_sentence():
    study = optuna.load_study(study_name=name, storage=url)
    worker = ElasticWorker(
        study, objective, agree(study, None, None, {}), cpus=int(cpus), pool=pool,
        checkpoints=folder, ttl=float(ttl), grace=float(grace),
    )
    sys.exit(0 if worker.run().settled else 130)
"""


def table_of(study: optuna.Study, pool: str | None = None) -> AllocationTable:
    """The study's table, to look at."""
    return AllocationTable(open_table(study), pool or study.study_name, study._study_id)
