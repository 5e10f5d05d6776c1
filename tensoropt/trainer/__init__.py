"""Training a Keras model, or any captured function, by a plan: ``tensoropt.parallelize``."""
