"""The cluster's metadata: its znodes, the image built from them, and the cache that follows the change log."""
