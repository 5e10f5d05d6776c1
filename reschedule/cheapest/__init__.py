"""Cheapest paths between layouts, found one by one and many at once."""
