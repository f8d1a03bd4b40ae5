"""The server: one bundle over HTTP, every caller through one queue. Needs no torch."""
