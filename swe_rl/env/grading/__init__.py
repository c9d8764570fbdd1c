"""Was it solved: the graders, and what they run in a fresh sandbox."""
