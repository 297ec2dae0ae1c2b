"""Modules, what their attributes are, and what can be asked of whole models."""
