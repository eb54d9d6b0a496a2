"""What is stored: keys, control objects, the safetensors stream, and PyECLib's header for recovery."""
