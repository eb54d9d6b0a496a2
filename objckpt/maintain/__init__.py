"""Looking after what is stored: verification and the probing of targets."""
