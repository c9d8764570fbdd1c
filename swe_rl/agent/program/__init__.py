"""This package has agents that are programs: one class starts them in the sandbox, a file each says what its program
needs for that."""
