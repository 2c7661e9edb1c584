"""Groups of the protocol in which the coordinator assigns (KIP-848): records, assignors, the group's machine."""
