"""Operators whose local form isn't the same TensorFlow operator on local operands."""
