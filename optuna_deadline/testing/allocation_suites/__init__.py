"""The parts of the conformance suite, one for each kind of transition."""
