"""Invariance pairs: `pairset` holds and draws them, every other module builds them one way."""
