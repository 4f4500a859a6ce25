"""Images as the rest of the world keeps them: registries, OCI layouts, docker-archives; and what makes them."""
