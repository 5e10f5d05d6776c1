"""Sessions, TensorFlow's own way of working: each is one run from ``init`` to the last ``run``."""
