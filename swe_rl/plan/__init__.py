"""This package estimates what a configuration will use: sizes, memory, time."""
