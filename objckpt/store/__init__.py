"""Object stores: the port, its adapters, one decorator per concern, and the one place that composes them."""
