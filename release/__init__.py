"""What a release is made of: the changelog, the files, their trial in empty environments."""
