"""Rows as tables: what is in them, and how they are written."""
