"""Pytrees with leaves that JAX does not take: their arrays, and a static frame."""
