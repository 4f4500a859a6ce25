"""Keys, signatures, tenants, data classes."""
