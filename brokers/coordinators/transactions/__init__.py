"""The transaction coordinator: producer ids, transactions, their markers, and the verification of partitions."""
