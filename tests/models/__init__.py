"""Models of users, held to plain Keras."""
