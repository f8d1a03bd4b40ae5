"""Records of training: cards, probes, fingerprints, comparisons and lines for people."""
