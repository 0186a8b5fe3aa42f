"""Whom agents connect with, where some are alike."""
