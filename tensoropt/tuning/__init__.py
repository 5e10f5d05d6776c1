"""Choices made by measuring operators and whole steps."""
