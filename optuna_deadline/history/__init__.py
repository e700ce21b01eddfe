"""The history of a study, from the allocation table alone; pure except its reader."""
