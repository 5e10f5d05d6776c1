"""Find plans: requests, the search problem of a graph, candidates in stages, and what baseline algorithms choose."""
