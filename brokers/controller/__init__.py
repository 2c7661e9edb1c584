"""The controller: one broker of the fleet decides which replicas lead, and performs what admin requests ask for."""
