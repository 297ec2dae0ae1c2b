"""JAX transformations with reference semantics."""
