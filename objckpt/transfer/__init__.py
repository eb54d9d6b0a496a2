"""Bytes on the move: placement, the byte budget, upload and download."""
