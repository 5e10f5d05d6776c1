"""Strategies, and the layouts and reshardings that follow from them."""
