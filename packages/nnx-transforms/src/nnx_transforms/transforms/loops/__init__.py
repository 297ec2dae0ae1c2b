"""What loops and branches share: what they carry, and whether runs agree."""
