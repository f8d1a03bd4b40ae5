"""A bundle as ONNX files that run without Polyhead: one for the trunk, one for each task, and how to run them."""
