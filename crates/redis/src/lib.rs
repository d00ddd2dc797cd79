//! The Redis store of Leasehold
