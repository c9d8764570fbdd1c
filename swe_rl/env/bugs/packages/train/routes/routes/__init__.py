"""Roads between places: graph, paths, trips and stops."""
