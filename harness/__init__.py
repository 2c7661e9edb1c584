"""What tests and measurements drive parts of a broker with; neither imports the other."""
