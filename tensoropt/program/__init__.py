"""The training step as a program of instructions on buffers, and the peak memory of that program."""
