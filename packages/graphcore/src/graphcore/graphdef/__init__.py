"""Definitions: graphs taken apart, described, and put together again."""
