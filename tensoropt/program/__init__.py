"""The training step as a program of buffers, and the most memory that is alive in it at once."""
