"""From a plan to the graph that each rank runs."""
