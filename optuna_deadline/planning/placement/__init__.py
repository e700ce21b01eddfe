"""Which slots a plan's trials take."""
