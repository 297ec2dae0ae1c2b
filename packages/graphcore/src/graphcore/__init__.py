"""Graphs of Python objects as a hashable definition and a pytree, and back."""
