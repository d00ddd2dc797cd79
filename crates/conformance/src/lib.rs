//! The conformance suite of Leasehold: one table of named cases that judges every store
