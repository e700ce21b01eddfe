"""Syne Tune's own schedulers in its own simulator, on our tables, in a separate environment."""
