"""Syne Tune's own schedulers on its own simulator, on our tables: in an environment of theirs."""
