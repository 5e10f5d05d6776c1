"""From a graph and its costs to a problem and its frontier; what other algorithms choose."""
