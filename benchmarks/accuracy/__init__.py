"""How good the model in hand is at the deadline: all policies on all recorded curves."""
