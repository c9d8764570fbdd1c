"""The container oracle: instances of real packages, made and proven here, and run end to end in containers."""
