"""What the hardware is, and what collectives and operators cost on it. Imports no TensorFlow."""
