"""Lower a plan to the TensorFlow graph that each rank runs."""
