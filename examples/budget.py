"""The best model by a deadline and within a budget, on slots that cost money.

The policy Seer chooses the number of configurations and of slots. When the budget is spent, the
study ends as at its deadline, with the best model verified on disk.
"""

import argparse

import optuna
from two_workers import EPOCHS, objective  # the same training loop

import optuna_deadline
from optuna_deadline import Price
from optuna_deadline.values.deadlines import parse_deadline

SLOTS = 2

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline", default="20s", help="from now, as in 20s or 2h30m")
    parser.add_argument("--price", type=float, default=0.9, help="of a slot for an hour, in USD")
    parser.add_argument("--budget", type=float, help="in USD; by default 70 %% of the slots")
    parser.add_argument("--storage", default="sqlite:///examples.db")
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    seconds = parse_deadline(args.deadline).duration
    price = Price(args.price)  # granularity, minimum, startup and node set how bills are rounded
    budget = args.budget or 0.7 * SLOTS * price.per_second * (seconds or 0.0)
    study = optuna.create_study(direction="maximize", storage=args.storage)
    result = optuna_deadline.run(
        study,
        objective,
        cpus=SLOTS,
        deadline=args.deadline,
        budget=budget,
        price=price,
        policy=f"seer:max_resource={EPOCHS}",
    )
    print(f"Spent {result.spent:.5f} of {budget:.5f} USD on {len(study.trials)} trials.")
    print(f"Ended {-result.overshoot:.1f} s before the deadline.")
    if not result.checkpoint_ok:
        raise SystemExit("No epoch was saved in that time, for that money: give more of them.")
    print(f"Best accuracy {result.value:.3f}: trial {result.trial_number}, epoch {result.step}.")
    print(f"Its checkpoint, verified {result.checkpoint_ok}: {result.checkpoint}")
