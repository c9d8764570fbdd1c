"""What a configuration will use: sizes, memory, time."""
