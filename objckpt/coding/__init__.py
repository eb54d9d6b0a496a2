"""The coding layer: geometry, checksums and the Reed-Solomon codec; bytes in, bytes out, no I/O."""
