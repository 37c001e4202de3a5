"""The report: figures, and the one self-contained page they stand on."""
