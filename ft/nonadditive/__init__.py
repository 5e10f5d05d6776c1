"""Search with costs that don't add up: overlapped communication and transient memory."""
