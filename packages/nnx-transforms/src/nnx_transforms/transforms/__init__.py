"""The transformations, one file each, and what they share."""
