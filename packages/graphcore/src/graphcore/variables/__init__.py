"""Variables: what holds the values, of our own types and of registered ones."""
