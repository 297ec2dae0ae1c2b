"""What derivatives share: tangents of objects, and how functions with rules run."""
