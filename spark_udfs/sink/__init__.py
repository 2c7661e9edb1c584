"""The sink: batch transactions and driver mode, the fence that makes a micro-batch count once."""
