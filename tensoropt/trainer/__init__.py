"""Train a Keras model or a captured function under a plan: what ``tensoropt.parallelize`` returns."""
