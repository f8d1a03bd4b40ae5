"""A trunk and its tasks on disk: format 1, with every array hashed and every change atomic."""
