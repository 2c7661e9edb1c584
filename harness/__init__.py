"""What both tests and measurements use; neither imports the other."""
