"""The steps that optimizers are chains of, by what they do to the updates."""
