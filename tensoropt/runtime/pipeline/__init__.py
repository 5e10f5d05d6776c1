"""Run a model in stages, each on devices of its own."""
