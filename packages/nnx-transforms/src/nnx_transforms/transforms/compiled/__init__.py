"""What a compiled function is made of: its body, its stages, what it takes over."""
