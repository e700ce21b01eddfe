"""What optuna-dashboard shows of a study, and a page of our own beside it."""
