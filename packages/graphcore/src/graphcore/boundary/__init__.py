"""The boundary between live objects and pure functions; see `graphcore.authors`."""
