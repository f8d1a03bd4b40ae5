"""The shared encoder as plain data: its shape, arrays, digest, and the names of arrays in checkpoints."""
