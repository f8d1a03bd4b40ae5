"""The server: one bundle over HTTP, every caller through one queue. Needs the extra `serve`, and no torch."""
