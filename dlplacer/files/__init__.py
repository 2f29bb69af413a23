"""Reading and writing of graphs, topologies and plans as JSON, with every mistake listed by its path."""
