"""What transformations share that map a function over an axis."""
