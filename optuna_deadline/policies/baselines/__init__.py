"""Known policies for comparison: FIFO, halving, the median rule, round robin."""
