"""Speed and memory, as ratios in one run: what is measured, the rows kept of it, and what is made of the rows."""
