"""Modules of other libraries as modules here."""
