"""What things cost, measured on the machine at hand; each module is a command of its own."""
