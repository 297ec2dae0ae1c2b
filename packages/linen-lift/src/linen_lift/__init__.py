"""Scope lifting: JAX transformations over functional modules."""
