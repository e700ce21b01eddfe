"""What the four papers report, beside what the same systems reach here."""
