"""Define strategies, and derive the layouts and reshardings that follow from them."""
