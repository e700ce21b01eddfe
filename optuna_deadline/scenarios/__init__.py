"""What-if: the rest of a study simulated from its present state, with and without a change."""
