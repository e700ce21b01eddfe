"""The regret of all policies at the deadline, on all recorded curves."""
