"""Known policies for comparison: FIFO, halving, median rule, time sharing, SLAQ."""
