"""Writing texts: one search, greedy or with beams, over a step of any backend's decoder."""
