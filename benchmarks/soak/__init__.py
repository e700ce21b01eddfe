"""A compressed week: many short studies one after the other in a pool, among random faults."""
