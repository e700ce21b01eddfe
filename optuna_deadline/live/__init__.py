"""A study as a terminal shows it."""
