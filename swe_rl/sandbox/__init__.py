"""Where commands run: isolated working copies behind one interface."""
