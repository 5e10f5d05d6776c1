"""Plans, frontiers and scaling curves: found for a request, stored as files, compared and explained."""
