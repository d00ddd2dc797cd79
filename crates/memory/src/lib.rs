//! The in-memory store of Leasehold: the executable specification, with virtual time for tests
