"""Build the search problem of a graph: nodes, edges, and arrays of costs."""
