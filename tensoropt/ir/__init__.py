"""Operators and tensors of a recorded model, without TensorFlow."""
