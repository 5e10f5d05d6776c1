"""Costs that don't add up: overlapped communication and memory that is there for a while only."""
