"""Who can talk to whom: neighbour tables, named graphs, mixing matrices."""
