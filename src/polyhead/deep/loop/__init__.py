"""The only training loop, and what it needs: batches, losses, optimizer, checkpoints, devices."""
