"""Errors, files, units of memory, settings and the import of TensorFlow, which every package uses."""
