"""The directories of ``log.dirs``: whose they are, what is without room, and their checkpoints."""
