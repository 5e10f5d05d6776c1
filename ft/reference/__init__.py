"""Other algorithms on the same problem: exhaustive search, and OptCNN's."""
