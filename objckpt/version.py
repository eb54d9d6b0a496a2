"""The release, for the package metadata and for manifests."""

__version__ = "0.1.0"
