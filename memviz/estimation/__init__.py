"""Model and setup to profiles, without allocating: the traced step, its order of execution, the allocator."""
