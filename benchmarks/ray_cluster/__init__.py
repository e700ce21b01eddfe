"""A study on four Ray nodes: one is killed, and a fifth joins."""
