"""A game on squares: board, moves, scores and turns."""
