"""What went wrong in a run, and what to do about it, from its log alone."""
