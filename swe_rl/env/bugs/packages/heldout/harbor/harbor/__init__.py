"""A small harbor: who lies where, what is unloaded, what is signalled."""
