"""What is raised when data cannot be used."""

__all__ = ["DataError"]


class DataError(ValueError):
    """A data file is missing, truncated, corrupt or of another kind than expected; the message says what to do."""
