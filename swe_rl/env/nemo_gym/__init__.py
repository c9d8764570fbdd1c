"""Makes resource servers of NeMo-Gym usable: the rows of their tasks, their sessions, and instances made of rows."""
