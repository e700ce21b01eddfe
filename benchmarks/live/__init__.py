"""Real training against the clock: ours beside what Optuna has, on the slots of this machine."""
