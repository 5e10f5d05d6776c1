"""TensorFlow's own way of working: one run from ``init`` to the last ``run``."""
