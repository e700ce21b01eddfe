"""Run real workers under many faults at once, and check what their ranks did."""
