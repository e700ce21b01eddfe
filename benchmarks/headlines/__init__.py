"""The main results of the four papers, beside those of the same systems here."""
