"""Who owns a run and what exists in it: quorums, epochs, catalog versions (docs/protocol.md)."""
