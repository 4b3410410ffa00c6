"""The GPT model, which maps ids to logits."""
