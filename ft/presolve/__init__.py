"""States and pairs of states that can't matter, dropped before a search."""
