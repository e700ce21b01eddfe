"""What others do: FIFO, halving, median rule, time sharing, SLAQ."""
