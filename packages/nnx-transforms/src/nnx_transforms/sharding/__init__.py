"""Where variables lie on a mesh of devices: read, set, made there, and shown."""
