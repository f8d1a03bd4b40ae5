"""How features of every token are best written in few bytes, and what they are worth beside one vector a document."""
