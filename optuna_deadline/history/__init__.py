"""What happened to a study, told from the allocation table alone; pure but for its reader."""
