"""Pools of networks: which measure follows the generalization gap?"""
