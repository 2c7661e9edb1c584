"""Message schemas, in Kafka's JSON format, of messages that kafka-python has not."""
