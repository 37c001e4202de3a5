"""Every table and figure of the paper, made again: from rows that are there, and from trials that are run."""
