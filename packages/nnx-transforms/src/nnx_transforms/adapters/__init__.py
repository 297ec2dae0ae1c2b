"""Settings, filters and random state of other libraries."""
