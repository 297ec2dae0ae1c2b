"""Transformations and modules with the arguments of an earlier generation."""
