"""A study on four Ray nodes, one of which is killed, and a fifth that joins."""
