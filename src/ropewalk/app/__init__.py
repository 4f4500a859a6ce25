"""The composition root: the Ropewalk object, profiles wired to drivers."""
