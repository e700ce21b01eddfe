#!/usr/bin/env bash
# A study on a SLURM cluster: one worker on each of two nodes, with four GPUs each. Run it on the
# login node, in a folder that the nodes share. Arguments are passed on: try --dry-run first.
set -euo pipefail

: "${OPTUNA_DEADLINE_STORAGE:?name a PostgreSQL that the nodes reach, as postgresql+psycopg://user@host/db}"
optuna-deadline create digits --direction maximize --deadline 8h
optuna-deadline slurm train.py:objective --study digits --checkpoints "$PWD/checkpoints" \
    --gpus-per-node 4 --nodes 2 --time 4:00:00 "$@"
