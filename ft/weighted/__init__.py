"""Search for the least weighted sum of memory and time, and derive what it proves about the frontier."""
