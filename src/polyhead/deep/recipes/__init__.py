"""How recipes train: joint, donors, leaving out, fine-tuning, and what they share."""
