"""What a study is created with, and its best trial."""
