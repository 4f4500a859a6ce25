"""The `process` driver: bubblewrap, namespaces, an overlay, control groups."""
