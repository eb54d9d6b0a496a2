"""One checkpoint being written, one being read: transfer and commit joined. Knows named shards, not tensors."""
