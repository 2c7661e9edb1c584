"""Column and DataFrame functions for Kafka's records."""
