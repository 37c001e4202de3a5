"""The paper's theory, tried: descent, stability, and the method in a space of two parameters."""
