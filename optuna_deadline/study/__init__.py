"""The terms of a study, its policy and its best trial."""
