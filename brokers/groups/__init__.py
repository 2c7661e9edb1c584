"""Consumer groups as pure state machines: membership, committed offsets, and their records."""
