"""The allocation table in the study's database: who shall train where, and who does."""
