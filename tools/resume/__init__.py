"""A training run that is killed again and again, and must end as if it never was."""
