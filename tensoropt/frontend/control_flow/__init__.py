"""Turn loops and custom gradients into operators with a body of operators."""
