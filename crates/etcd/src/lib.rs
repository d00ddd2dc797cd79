//! The etcd store of Leasehold
