"""The version of the package, for its metadata and its requests."""
VERSION = "0.1.0"
