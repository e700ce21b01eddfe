"""Real workers under every fault at once, and a check of what their ranks did."""
