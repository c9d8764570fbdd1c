"""This package makes sandboxes: isolated working copies, behind one interface, in which commands run."""
