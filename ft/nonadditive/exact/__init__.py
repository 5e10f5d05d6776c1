"""Find the frontier of a small problem exactly where memory includes the largest of several segments' memory."""
