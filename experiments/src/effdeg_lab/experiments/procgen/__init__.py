"""PPO on Procgen's games."""
