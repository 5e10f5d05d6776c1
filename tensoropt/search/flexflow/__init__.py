"""FlexFlow's search (section 6): a random walk over strategies by their simulated times."""
