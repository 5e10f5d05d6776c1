"""Choices made by measuring operators and training steps."""
