"""Access control lists: who may do what, as a decision over values, and the znodes they stand in."""
