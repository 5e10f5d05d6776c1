"""Searches for the least weighted sum of memory and time, and what they prove about the frontier."""
