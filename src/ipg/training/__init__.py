"""The one training loop, and what makes it resumable."""
