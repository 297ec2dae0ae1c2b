"""Random streams, and streams of their own for each index of a mapped axis."""
