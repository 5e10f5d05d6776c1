"""Layouts of tensors on a mesh of devices, and the cheapest steps from one layout to another."""
