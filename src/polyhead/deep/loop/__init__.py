"""The only training loop, with its batches, losses, optimizer, checkpoints and devices."""
