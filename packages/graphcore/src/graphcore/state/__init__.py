"""States: the values of a graph by path, and filters that select among them."""
