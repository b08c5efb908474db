"""ExitModel: a pretrained encoder with exits; its parts, and checkpoints of older systems."""
