"""pytest plugin (see issue 7)."""
