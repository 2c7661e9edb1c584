"""What a log knows of its producers: their last batches, transactions, snapshots, refused batches."""
