"""Drop states and pairs of states that can't matter, before a search."""
