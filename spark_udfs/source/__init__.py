"""The source: which offsets a query reads, and their records as Arrow rows."""
