"""What training leaves of a task: card, probes, fingerprints, comparisons and lines."""
