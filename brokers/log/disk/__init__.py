"""What the log does with files: the disk port, its workers, checkpoints, and how a disk fails."""
