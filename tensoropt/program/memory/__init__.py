"""What is alive at once in a step, instruction by instruction."""
