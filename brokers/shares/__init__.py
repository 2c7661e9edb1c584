"""Share groups (KIP-932): what a share partition's leader and the share coordinator know, as pure state machines."""
