"""Graphs as text, in notebooks and as drawings."""
