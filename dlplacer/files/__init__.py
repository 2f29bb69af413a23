"""JSON in and out: graphs, topologies and plans, with every mistake listed by its path."""
