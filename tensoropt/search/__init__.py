"""Build the search problem of a graph and find its frontier, or what baseline algorithms choose."""
