"""A registry of schemas, in Confluent's protocol and storage: formats and their rules, its state, and its server."""
