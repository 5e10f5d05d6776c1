"""The loop over the ways to train a model: candidates by ascending bound, each searched only if it may be better."""
