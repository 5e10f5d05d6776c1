"""Tables of small frontiers, and the operations on them that all eliminations are made of."""
