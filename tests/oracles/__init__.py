"""Slow ways to compute what TensorOpt computes fast, for tests to hold it against."""
