"""Questions answered from profiles: does it fit, how large may it be, what would help."""
