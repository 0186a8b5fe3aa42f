"""Data sets: loaders and generators that return `p2pjax.data.Examples`."""
