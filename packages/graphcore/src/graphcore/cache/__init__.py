"""What makes it quick: plans of graphs that were seen, and how they are checked."""
