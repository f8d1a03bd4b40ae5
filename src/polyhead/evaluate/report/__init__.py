"""Reports for people, from files and plain values, never from live objects."""
