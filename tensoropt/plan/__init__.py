"""What is asked and answered: frontiers, plans and scaling curves as values, files and explanations."""
