"""Reinforcement learning: PPO on Procgen's games, with the effective degree of the policy as a penalty."""
