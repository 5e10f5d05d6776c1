"""Composite operators: one operator with a body of operators, from whose rules its own is derived."""
