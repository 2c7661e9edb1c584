"""TLS: its settings and files, contexts, and the state machine of a connection's handshake and records."""
