"""Frontiers of one model on one mesh: found, their peaks counted, turned into plans, and explained."""
