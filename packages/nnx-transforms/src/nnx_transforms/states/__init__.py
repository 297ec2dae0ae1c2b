"""States of graphs, and what is done to all variables at once."""
