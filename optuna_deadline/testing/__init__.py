"""The conformance suite for policies of your own."""
