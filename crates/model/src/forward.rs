//! Where a node sends what it receives: the one table between the decision and the kernel.
