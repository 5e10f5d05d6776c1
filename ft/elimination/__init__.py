"""Frontier-Tracking itself: eliminations and linear dynamic programming on a graph of tables."""
