"""Kept encoder outputs: memory-mapped segments, identified by digests, with codecs down to one bit per dimension."""
