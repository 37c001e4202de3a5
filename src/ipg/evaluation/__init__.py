"""How good and how robust a model is: by group, by pair, and which epoch to keep."""
