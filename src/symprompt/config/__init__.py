"""One way to build, check, override, store and compare any config."""
