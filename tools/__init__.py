"""Programs for the people who work on this repository."""
