"""What the fleet agrees on: topics, leaders, configurations; who decides it, and how a broker learns of it."""
