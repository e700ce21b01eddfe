"""What slots cost, and a pool that stays within the money."""
