"""A child process of one's own and the messages exchanged with it; estimates and trials both run in one."""
