"""Real training to a deadline on this machine: this project, Optuna and Ray Tune."""
